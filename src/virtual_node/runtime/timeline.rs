//! The tables behind stream, event and graph handles. A handle is a number
//! that nobody can mistake for a pointer of theirs, so a wrong one is an error
//! and no crash.

use super::abi::HostFunction;
use super::errors::{Error, INVALID_HANDLE};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Handles up to 2 are the default streams of CUDA.
const DEFAULT_STREAMS: usize = 2;
const FIRST_HANDLE: usize = 0x1_0000;

/// A stream.
#[derive(Debug, Default)]
pub(super) struct Stream {
    pub(super) capture: Option<Capture>,
}

/// A stream's part in a capture.
#[derive(Clone, Debug)]
pub(super) struct Capture {
    pub(super) graph: usize,
    /// The capture began on this stream.
    pub(super) origin: bool,
    /// The nodes that the next one depends on.
    pub(super) heads: Vec<usize>,
}

/// One node's work when its graph is launched.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    Kernel,
    Host(HostFunction, usize),
    Event,
}

/// A graph, and how many handles and instances refer to it.
#[derive(Debug, Default)]
pub(super) struct Graph {
    pub(super) id: u64,
    pub(super) references: usize,
    pub(super) work: Vec<Work>,
    /// User objects with the number of references that the graph holds.
    pub(super) objects: Vec<(usize, u32)>,
}

/// A user object: what to call when its last reference goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct UserObject {
    pub(super) pointer: usize,
    pub(super) destroy: HostFunction,
    pub(super) references: u32,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Timeline {
    last: usize,
    pub(super) streams: HashMap<usize, Stream>,
    /// What an event marks in a capture; `None` outside of one.
    pub(super) events: HashMap<usize, Option<Capture>>,
    pub(super) graphs: HashMap<usize, Graph>,
    pub(super) instances: HashMap<usize, usize>,
    pub(super) objects: HashMap<usize, UserObject>,
}

static TIMELINE: Mutex<Option<Timeline>> = Mutex::new(None);

/// The tables, locked.
pub(super) struct Locked(MutexGuard<'static, Option<Timeline>>);

/// Locks the tables. Nothing may be called back while they are locked.
pub(super) fn lock() -> Locked {
    Locked(TIMELINE.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Locked {
    /// The tables.
    pub(super) fn tables(&mut self) -> &mut Timeline {
        self.0.get_or_insert_default()
    }
}

impl Timeline {
    /// A handle that was not used before.
    pub(super) fn handle(&mut self) -> usize {
        self.last += 1;
        FIRST_HANDLE + self.last * 16
    }

    /// A stream's capture: of a default stream there is none.
    pub(super) fn capture(&mut self, stream: usize) -> Result<Option<&mut Capture>, Error> {
        if stream <= DEFAULT_STREAMS {
            return Ok(None);
        }
        Ok(self.streams.get_mut(&stream).ok_or(INVALID_HANDLE)?.capture.as_mut())
    }

    /// A stream that was created.
    pub(super) fn stream(&mut self, stream: usize) -> Result<&mut Stream, Error> {
        self.streams.get_mut(&stream).ok_or(INVALID_HANDLE)
    }

    /// Adds a node to a graph and gives its handle.
    pub(super) fn add(&mut self, graph: usize, work: Work) -> Result<usize, Error> {
        let node = self.handle();
        self.graphs.get_mut(&graph).ok_or(INVALID_HANDLE)?.work.push(work);
        Ok(node)
    }

    /// Drops one reference to a graph; what is to be called then, once the
    /// tables are unlocked.
    pub(super) fn release(&mut self, graph: usize) -> Result<Vec<UserObject>, Error> {
        let known = self.graphs.get_mut(&graph).ok_or(INVALID_HANDLE)?;
        known.references = known.references.saturating_sub(1);
        if known.references > 0 {
            return Ok(Vec::new());
        }
        let objects = std::mem::take(&mut known.objects);
        self.graphs.remove(&graph);
        let gone = objects.into_iter().filter_map(|(object, count)| {
            let known = self.objects.get_mut(&object)?;
            known.references = known.references.saturating_sub(count);
            let over = known.references == 0;
            if over { self.objects.remove(&object) } else { None }
        });
        Ok(gone.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn nothing(_: usize) {}

    #[test]
    fn a_user_object_goes_with_the_last_reference_to_its_graph() {
        let mut tables = Timeline::default();
        let (graph, object) = (tables.handle(), tables.handle());
        tables.objects.insert(object, UserObject { pointer: 7, destroy: nothing, references: 1 });
        let objects = vec![(object, 1)];
        tables.graphs.insert(graph, Graph { references: 2, objects, ..Graph::default() });
        assert!(tables.release(graph).expect("known").is_empty());
        let gone = tables.release(graph).expect("known");
        assert_eq!(gone.iter().map(|object| object.pointer).collect::<Vec<_>>(), [7]);
        assert_eq!(tables.release(graph).err(), Some(INVALID_HANDLE));
    }
}
