//! Which variables are watched and which value each place sets. The canaries
//! are two variables that ncclGetUniqueId reads in every version from 2.18.3:
//! an integer (cached, so that N can be read) and a string.

use super::Set;
use crate::model::Place;

/// The integer canary: read and cached by ncclGetUniqueId (measured 2.18.3 to
/// 2.32.3), and harmless with a large number, because only 0 and 1 mean
/// something.
pub const INTEGER: &str = "NCCL_GDRCOPY_ENABLE";
/// The string canary: must name an interface that exists, but a list may hold
/// prefixes that match nothing.
pub const STRING: &str = "NCCL_SOCKET_IFNAME";

/// The watched variables.
#[derive(Clone, Debug, Default)]
pub struct Values {
    /// What the user asked for; empty means the canaries.
    given: Vec<(String, Vec<u8>)>,
}

impl Values {
    /// Watches the user's own variables, or the canaries when there are none.
    pub fn new(given: Vec<(String, Vec<u8>)>) -> Self {
        Self { given }
    }

    /// Whether a row of a process in which several places were set shows who
    /// won: not when all of them set the user's one value.
    pub fn tell_places_apart(&self) -> bool {
        self.given.is_empty()
    }

    /// The watched names.
    pub fn names(&self) -> Vec<&str> {
        if self.given.is_empty() {
            return vec![INTEGER, STRING];
        }
        self.given.iter().map(|(name, _)| name.as_str()).collect()
    }

    /// What a place sets: name and value of each watched variable. With the
    /// canaries each place has values of its own, so that a row shows who won.
    pub fn of(&self, set: Set) -> Vec<(String, Vec<u8>)> {
        if !self.given.is_empty() {
            return self.given.clone();
        }
        let place = Place::ALL.iter().position(|&p| p == set.place).unwrap_or_default() + 1;
        let number = place * 100_000 + 1 + usize::from(set.nth);
        let list = format!("lo,c{place}{}", set.nth);
        vec![(INTEGER.into(), number.to_string().into_bytes()), (STRING.into(), list.into_bytes())]
    }
}

#[cfg(test)]
mod tests {
    use super::super::{SECOND_SITE, SITE};
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_place_has_values_of_its_own() {
        let values = Values::default();
        let mut sets: Vec<Set> = Place::ALL.iter().map(|&place| Set { place, nth: 0 }).collect();
        sets.push(SECOND_SITE);
        assert!(sets.contains(&SITE));
        let all: Vec<_> = sets.iter().flat_map(|&s| values.of(s)).collect();
        let distinct: HashSet<_> = all.iter().collect();
        assert_eq!(all.len(), distinct.len());
    }
}
