//! Which variables are watched and which value each place sets. The canaries
//! are two variables that ncclGetUniqueId reads in every version from 2.18.3:
//! an integer (cached, so that N can be read) and a string. The others are read
//! when a communicator is made.

use super::Set;
use crate::model::Place;

/// The integer canary: read and cached by ncclGetUniqueId (measured 2.18.3 to
/// 2.32.3), and harmless with a large number, because only 0 and 1 mean
/// something.
pub const INTEGER: &str = "NCCL_GDRCOPY_ENABLE";
/// The string canary: must name an interface that exists, but a list may hold
/// prefixes that match nothing.
pub const STRING: &str = "NCCL_SOCKET_IFNAME";

/// Variables that NCCL reads when it makes a communicator, and whose effect a
/// communicator shows.
pub const AT_INIT: [&str; 5] =
    ["NCCL_ALGO", "NCCL_PROTO", "NCCL_BUFFSIZE", "NCCL_MIN_NCHANNELS", "NCCL_NTHREADS"];

/// The watched variables.
#[derive(Clone, Debug, Default)]
pub struct Values {
    /// What the user asked for; empty means the test values.
    given: Vec<(String, Vec<u8>)>,
    /// Of the test values only the canaries.
    light: bool,
}

impl Values {
    /// Watches the user's own variables, or the built-in ones when there are
    /// none: with `light` only those that the first call of NCCL reads.
    pub fn new(given: Vec<(String, Vec<u8>)>, light: bool) -> Self {
        Self { given, light }
    }

    /// Whether a row of a process in which several places were set shows who
    /// won: not when all of them set the user's one value.
    pub fn tell_places_apart(&self) -> bool {
        self.given.is_empty()
    }

    /// The watched names.
    pub fn names(&self) -> Vec<&str> {
        if !self.given.is_empty() {
            return self.given.iter().map(|(name, _)| name.as_str()).collect();
        }
        let at_init = if self.light { &[][..] } else { &AT_INIT };
        at_init.iter().copied().chain([INTEGER, STRING]).collect()
    }

    /// What a place sets: name and value of each watched variable. Each place
    /// has values of its own, so that a row shows who won.
    pub fn of(&self, set: Set) -> Vec<(String, Vec<u8>)> {
        if !self.given.is_empty() {
            return self.given.clone();
        }
        let place = Place::ALL.iter().position(|&p| p == set.place).unwrap_or_default() + 1;
        let number = place * 100_000 + 1 + usize::from(set.nth);
        let canaries = [number.to_string(), format!("lo,c{place}{}", set.nth)];
        let at_init = if self.light { Vec::new() } else { at_init(set).to_vec() };
        let values = at_init.into_iter().chain(canaries);
        self.names().into_iter().map(str::to_owned).zip(values.map(String::into_bytes)).collect()
    }
}

/// What a place sets for the variables that are read at init. NCCL takes all of
/// them as they are; places that meet in one process differ in their effect,
/// and all differ in their text.
fn at_init(set: Set) -> [String; 5] {
    let (row, algorithm, protocol) = match (set.place, set.nth) {
        (Place::Shell, _) => (0, "Ring", "LL"),
        (Place::Parent, _) => (1, "ring", "LL128"),
        (Place::Child, _) => (2, "Tree", "Simple"),
        (Place::Site, 0) => (3, "tree", "simple"),
        (Place::Site, _) => (4, "RING", "ll"),
        (Place::Conf, _) => (5, "TREE", "ll128"),
        (Place::Launcher, 0) => (6, "tREE", "SIMPLE"),
        (Place::Launcher, _) => (7, "rING", "Ll"),
    };
    [
        algorithm.into(),
        protocol.into(),
        // 1 MiB and so on, never the default of 4 MiB.
        ([2, 3, 4, 5, 6, 7, 9, 10][row] << 19).to_string(),
        // Above what NCCL takes on the probes' node.
        (10 + row).to_string(),
        // Multiples of 32 that are no default.
        ([96, 128, 160, 192, 224, 288, 320, 352][row]).to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::{LaunchPath, SECOND_SITE, SITE, all};
    use super::*;
    use crate::model::InForce;
    use crate::nccl::effect::made_by;
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

    /// Otherwise a row could not show who won.
    #[test]
    fn places_that_meet_in_one_process_differ_in_their_effect() {
        let values = Values::default();
        let launches = all().flat_map(|path: &LaunchPath| path.launches);
        for launch in launches.filter(|launch| launch.len() > 1) {
            for variable in AT_INIT {
                let effects: Vec<InForce> = launch
                    .iter()
                    .flat_map(|&set| values.of(set))
                    .filter(|(name, _)| name == variable)
                    .map(|(name, value)| made_by(&name, &value))
                    .collect();
                for (index, effect) in effects.iter().enumerate() {
                    assert!(!effects[..index].contains(effect), "{variable}: {effects:?}");
                }
            }
        }
    }
}
