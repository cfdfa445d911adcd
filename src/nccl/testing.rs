//! Real libraries for tests. With `NCCLDIAG_TEST_WHEELS=all` the wheels of all
//! supported versions are fetched into the user's cache; otherwise tests use
//! what is there, and say so when nothing is.

use super::cache::{Cache, Entry};
use super::{progress, wheel};
use crate::testing::skipped;

/// One wheel of every release train that the facts were measured on.
const ALL: [&str; 12] = [
    "2.18.3",
    "2.21.5",
    "2.23.4",
    "2.26.5",
    "2.27.5",
    "2.28.9",
    "2.29.7",
    "2.30.7",
    "2.31.2",
    "2.32.3",
    "2.28.9+cu13",
    "2.32.3+cu13",
];

/// The libraries to test with, oldest first; prints why when there is none.
pub(crate) fn libraries() -> Vec<Entry> {
    let cache = Cache::user().expect("a place for the cache");
    if std::env::var_os("NCCLDIAG_TEST_WHEELS").is_some_and(|value| value == "all") {
        for name in ALL {
            let wheel = name.parse().expect("the list is well-formed");
            wheel::fetch(&wheel, &cache, None, &mut progress::silent).expect("pip works");
        }
    }
    let entries = cache.list().expect("the cache can be read");
    if entries.is_empty() {
        let root = cache.root().display();
        skipped(&format!("no libnccl in {root}; set NCCLDIAG_TEST_WHEELS=all"));
    }
    entries
}
