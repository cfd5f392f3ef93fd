//! How far apart measured values are.

use serde::Serialize;

/// The least, the middle and the most of some values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    pub min: f64,
    pub median: f64,
    pub max: f64,
}

impl Spread {
    /// Of these; `None` without any.
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        Some(Self {
            min: *sorted.first()?,
            median: *sorted.get(sorted.len() / 2)?,
            max: *sorted.last()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_many_is_one_of_them() {
        let spread = |min, median, max| Some(Spread { min, median, max });
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(Spread::of(&[2.0]), spread(2.0, 2.0, 2.0));
        assert_eq!(Spread::of(&[9.0, 1.0, 5.0]), spread(1.0, 5.0, 9.0));
    }
}
