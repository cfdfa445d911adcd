//! All processes and who is whose parent, as one reading of `/proc` shows
//! them. What one process is, is in `stat`.

use super::stat::{self, Stat};
use crate::model::Unreadable;
use std::collections::{BTreeMap, HashSet};

/// A reading of the process table. Processes that start or end while it is
/// read may be missing or orphaned in it.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    processes: BTreeMap<i32, Stat>,
    children: BTreeMap<i32, Vec<i32>>,
}

/// The ids of all processes that `/proc` shows, ascending.
///
/// # Errors
/// When `/proc` cannot be listed.
pub fn pids() -> Result<Vec<i32>, Unreadable> {
    let listing = std::fs::read_dir("/proc")
        .map_err(|error| Unreadable::new(format!("list /proc: {error}")))?;
    let mut pids: Vec<i32> = listing
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|pid| *pid > 0)
        .collect();
    pids.sort_unstable();
    Ok(pids)
}

impl Tree {
    /// Reads the process table.
    ///
    /// # Errors
    /// When `/proc` cannot be listed.
    pub fn read() -> Result<Self, Unreadable> {
        // A process that is gone by now is left out.
        Ok(Self::from_stats(pids()?.into_iter().filter_map(|pid| stat::read(pid).ok())))
    }

    /// A tree of given processes.
    pub fn from_stats(stats: impl IntoIterator<Item = Stat>) -> Self {
        let processes: BTreeMap<i32, Stat> =
            stats.into_iter().map(|stat| (stat.pid, stat)).collect();
        let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
        for stat in processes.values() {
            children.entry(stat.ppid).or_default().push(stat.pid);
        }
        Self { processes, children }
    }

    /// All processes by ascending pid.
    pub fn processes(&self) -> impl Iterator<Item = &Stat> {
        self.processes.values()
    }

    /// One process.
    pub fn get(&self, pid: i32) -> Option<&Stat> {
        self.processes.get(&pid)
    }

    /// The children of a process by ascending pid.
    pub fn children(&self, pid: i32) -> &[i32] {
        self.children.get(&pid).map_or(&[], Vec::as_slice)
    }

    /// The process itself, when it exists, and all that descend from it,
    /// parents before their children.
    pub fn descendants(&self, pid: i32) -> Vec<i32> {
        let mut found: Vec<i32> =
            self.processes.get(&pid).map(|stat| stat.pid).into_iter().collect();
        let mut seen: HashSet<i32> = found.iter().copied().collect();
        let mut next = 0;
        while let Some(&parent) = found.get(next) {
            // A reused pid can close a ring in one reading.
            found.extend(self.children(parent).iter().filter(|child| seen.insert(**child)));
            next += 1;
        }
        found
    }

    /// The parents of a process, the nearest first, without itself.
    pub fn ancestors(&self, pid: i32) -> Vec<i32> {
        let mut seen = HashSet::from([pid]);
        let parent = |pid: &i32| self.processes.get(pid).map(|stat| stat.ppid);
        std::iter::successors(parent(&pid), parent)
            .take_while(|pid| self.processes.contains_key(pid) && seen.insert(*pid))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stat(pid: i32, ppid: i32) -> Stat {
        Stat {
            pid,
            comm: b"x".to_vec(),
            state: b'S',
            ppid,
            pgrp: pid,
            session: pid,
            flags: 0,
            start_time: 1,
        }
    }

    #[test]
    fn relations() {
        let pairs = [(1, 0), (5, 1), (7, 5), (6, 5), (9, 7), (8, 1)];
        let tree = Tree::from_stats(pairs.map(|(pid, ppid)| stat(pid, ppid)));
        assert_eq!(tree.children(5), [6, 7]);
        assert_eq!(tree.descendants(5), [5, 6, 7, 9]);
        assert_eq!(tree.ancestors(9), [7, 5, 1]);
        assert!(tree.descendants(4).is_empty());
        assert!(tree.ancestors(4).is_empty());
    }

    #[test]
    fn finds_itself_under_its_parent() {
        let own = std::process::id() as i32;
        let tree = Tree::read().expect("the process table");
        let parent = tree.get(own).expect("this process").ppid;
        assert!(tree.children(parent).contains(&own));
        assert!(tree.descendants(parent).contains(&own));
        assert_eq!(tree.ancestors(own).first(), Some(&parent).filter(|pid| **pid != 0));
    }

    proptest! {
        #[test]
        fn rings_end(pairs in proptest::collection::vec((1i32..9, 0i32..9), 0..12)) {
            let tree = Tree::from_stats(pairs.into_iter().map(|(pid, ppid)| stat(pid, ppid)));
            for pid in 0..9 {
                prop_assert!(tree.descendants(pid).len() <= 8);
                prop_assert!(tree.ancestors(pid).len() <= 8);
            }
        }
    }
}
