//! Quantities of the API (`resource.Quantity`): `100m`, `1.5`, `128Mi`, `2e3`.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Thousandths, rounded up; what cannot be read is 0, for one malformed amount must not hide its object.
pub fn thousandths(quantity: &Quantity) -> i64 {
    rounded_up(&quantity.0, NANOS / 1000)
}

/// Whole units, rounded up; what cannot be read is 0.
pub fn units(quantity: &Quantity) -> i64 {
    rounded_up(&quantity.0, NANOS)
}

/// Nothing finer than a billionth exists in a quantity.
const NANOS: i128 = 1_000_000_000;

fn rounded_up(text: &str, step: i128) -> i64 {
    let nanos = parse(text).unwrap_or_default().max(0);
    let steps = nanos / step + i128::from(nanos % step != 0);
    i64::try_from(steps).unwrap_or(i64::MAX)
}

/// The quantity in billionths, `i128::MAX` if it is larger than that; `None` if it is none.
fn parse(text: &str) -> Option<i128> {
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '+' | '-')))
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (negative, digits) = match number.as_bytes().first()? {
        b'-' => (true, number.get(1..)?),
        b'+' => (false, number.get(1..)?),
        _ => (false, number),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let is_number = |part: &str| part.bytes().all(|c| c.is_ascii_digit());
    if !is_number(whole) || !is_number(fraction) || (whole.is_empty() && fraction.is_empty()) {
        return None;
    }
    let (factor, divisor) = scale(suffix)?;
    let whole = whole.bytes().try_fold(0_i128, push_digit);
    // Beyond nine places a fraction only rounds up.
    let places = fraction.len().min(9);
    let (kept, beyond) = fraction.split_at(places);
    let padding = u32::try_from(9 - places).ok()?;
    let kept = kept.bytes().try_fold(0_i128, push_digit)? * 10_i128.pow(padding);
    let rest = i128::from(beyond.bytes().any(|c| c != b'0'));
    let nanos = whole
        .and_then(|whole| whole.checked_mul(NANOS))
        .and_then(|whole| whole.checked_add(kept + rest))
        .and_then(|nanos| nanos.checked_mul(factor))
        .map_or(i128::MAX, |nanos| nanos / divisor + i128::from(nanos % divisor != 0));
    Some(if negative { -nanos } else { nanos })
}

fn push_digit(number: i128, digit: u8) -> Option<i128> {
    number.checked_mul(10)?.checked_add(i128::from(digit - b'0'))
}

/// What a suffix multiplies by, and divides by.
fn scale(suffix: &str) -> Option<(i128, i128)> {
    let factor = match suffix {
        "n" => return Some((1, NANOS)),
        "u" => return Some((1, 1_000_000)),
        "m" => return Some((1, 1000)),
        "" => 1,
        "k" => 1000,
        "M" => 1_000_000,
        "G" => NANOS,
        "T" => 1000 * NANOS,
        "P" => 1_000_000 * NANOS,
        "E" => NANOS * NANOS,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        "Pi" => 1 << 50,
        "Ei" => 1 << 60,
        exponent => {
            let exponent: i32 = exponent.strip_prefix(['e', 'E'])?.parse().ok()?;
            let power = 10_i128.checked_pow(exponent.unsigned_abs().min(30))?;
            return Some(if exponent < 0 { (1, power) } else { (power, 1) });
        }
    };
    Some((factor, 1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("0", 0, 0)]
    #[case("1", 1000, 1)]
    #[case("100m", 100, 1)]
    #[case("1.5", 1500, 2)]
    #[case(".5", 500, 1)]
    #[case("5.", 5000, 5)]
    #[case("+2", 2000, 2)]
    #[case("128Mi", 134_217_728_000, 134_217_728)]
    #[case("1.5Gi", 1_610_612_736_000, 1_610_612_736)]
    #[case("2k", 2_000_000, 2000)]
    #[case("2e3", 2_000_000, 2000)]
    #[case("2E3", 2_000_000, 2000)]
    #[case("2E", 2_000_000_000_000_000_000_000_i128, 2_000_000_000_000_000_000)]
    #[case("1500e-3", 1500, 2)]
    // Never less than was asked for.
    #[case("1n", 1, 1)]
    #[case("1u", 1, 1)]
    #[case("0.0000000001", 1, 1)]
    #[case("1.0000000001", 1001, 2)]
    fn a_quantity_is_read_as_the_api_means_it(#[case] text: &str, #[case] milli: i128, #[case] whole: i64) {
        let quantity = Quantity(text.to_owned());
        assert_eq!(thousandths(&quantity), i64::try_from(milli).unwrap_or(i64::MAX));
        assert_eq!(units(&quantity), whole);
    }

    #[rstest]
    #[case("")]
    #[case("-")]
    #[case(".")]
    #[case("Mi")]
    #[case("1.2.3")]
    #[case("1 Gi")]
    #[case("1-2")]
    #[case("12x")]
    #[case("1e")]
    #[case("-5")]
    #[case("\u{fc}")]
    fn what_is_no_amount_counts_as_none(#[case] text: &str) {
        assert_eq!(units(&Quantity(text.to_owned())), 0);
    }

    #[test]
    fn an_amount_beyond_all_measure_is_the_largest_one() {
        for text in ["99999999999999999999999999999999999999999999", "9e30", "9999999999Ei"] {
            assert_eq!(units(&Quantity(text.to_owned())), i64::MAX, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_reading_panic(text in "\\PC{0,12}") {
            units(&Quantity(text.clone()));
            thousandths(&Quantity(text));
        }

        #[test]
        fn whole_numbers_are_exact(number in 0..i64::MAX / 1000) {
            let quantity = Quantity(number.to_string());
            prop_assert_eq!(units(&quantity), number);
            prop_assert_eq!(thousandths(&quantity), number * 1000);
        }
    }
}
