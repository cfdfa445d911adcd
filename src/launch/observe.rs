//! Looks at one arrived probe from outside, with the readers that serve any
//! process: E from /proc, L from target memory, N from libnccl's own data.
//! Only what exists nowhere else (which strings NCCL asked for, what Python's
//! mapping holds) is taken from the probe's report.

use super::values::Values;
use super::verdict::{Evidence, judge};
use super::{Set, hub::Arrival};
use crate::model::{Communicator, Effect, Latched, Observation, Place, Seen, Unreadable};
use crate::nccl::effect;
use crate::nccl::xray::{self, ImageCache, LayoutCache};
use crate::probes::wire::{Fields, split_assignment};
use crate::process::{self, EnvBlock};
use std::path::Path;
use std::time::Duration;

/// Everything seen of one probe.
pub struct Sighting {
    exec: Result<EnvBlock, Unreadable>,
    live: Result<EnvBlock, Unreadable>,
    latched: LatchedView,
    communicator: CommunicatorView,
    reads: Reads,
    mapping: Vec<Vec<u8>>,
    parent: Option<ParentSighting>,
    /// What NCCL's call complained about.
    pub nccl_error: Option<String>,
}

/// Where N comes from.
enum LatchedView {
    /// Read from outside.
    Outside(xray::LatchedSet),
    /// As a probe out of our reach read it from itself: `NAME=JSON`.
    Told(Vec<(String, Latched)>),
    /// Not at all.
    Unreadable(Unreadable),
}

/// Where the effect comes from.
enum CommunicatorView {
    /// None was asked for.
    Unwanted,
    /// What NCCL made.
    Made(Box<Communicator>),
    /// There is none, or it cannot be read.
    Unreadable(Unreadable),
}

/// What NCCL's `getenv` was asked and answered.
enum Reads {
    Witnessed(Fields),
    Unwitnessed(Unreadable),
}

/// A Python parent: its mapping against its live environ.
struct ParentSighting {
    mapping: Vec<Vec<u8>>,
    live: Result<EnvBlock, Unreadable>,
}

impl Sighting {
    /// Reads the views of a process that waits to be observed.
    ///
    /// # Errors
    /// It ended meanwhile, so that its process id may be another one's.
    pub fn of(
        probe: &Arrival,
        parent: Option<&Arrival>,
        readers: &Readers,
    ) -> Result<Self, String> {
        let told = &probe.fields;
        let parent = parent.map(|p| ParentSighting {
            mapping: mapping(&p.fields),
            live: process::live_environ(p.pid),
        });
        let (latched, communicator) = readers.views(probe.pid, told);
        let sighting = Self {
            exec: process::exec_block(probe.pid).or_else(|why| told_or(told, "exec", why)),
            live: process::live_environ(probe.pid).or_else(|why| told_or(told, "live", why)),
            latched,
            communicator,
            reads: Reads::from(told),
            mapping: mapping(told),
            parent,
            nccl_error: failed_call(told),
        };
        if probe.is_there() {
            Ok(sighting)
        } else {
            Err("the probe ended while it was looked at".into())
        }
    }

    /// What a probe that nobody could observe from outside says of itself.
    pub fn told(told: &Fields) -> Self {
        let missing = || Unreadable::new("the probe did not say");
        Self {
            exec: told_or(told, "exec", missing()),
            live: told_or(told, "live", missing()),
            latched: not_called(told)
                .or_else(|| told_latched(told))
                .unwrap_or_else(|| LatchedView::Unreadable(missing())),
            communicator: told_communicator(told, missing()),
            reads: Reads::from(told),
            mapping: mapping(told),
            parent: None,
            nccl_error: failed_call(told),
        }
    }

    /// One observation for each place that was set and each variable. They are
    /// numbered as process 0 of their path.
    pub fn observations(&self, launch: &[Set], values: &Values) -> Vec<Observation> {
        let all: Vec<(Place, String, Vec<u8>)> = launch
            .iter()
            .flat_map(|&s| values.of(s).into_iter().map(move |(n, v)| (s.place, n, v)))
            .collect();
        (0..all.len()).map(|i| self.observation(i, &all)).collect()
    }

    fn observation(&self, index: usize, all: &[(Place, String, Vec<u8>)]) -> Observation {
        let (place, name, expected) = &all[index];
        let exec = seen(&self.exec, name);
        let live = seen(&self.live, name);
        let latched = self.latched(name);
        let read = self.reads.last(name);
        let (verdict, finding) = judge(&Evidence {
            place: *place,
            is_nccl_name: name.starts_with("NCCL_"),
            witnessed: matches!(self.reads, Reads::Witnessed(_)),
            expected,
            rivals: &rivals(index, all),
            exec: &exec,
            exec_damaged: self.exec.as_ref().is_ok_and(EnvBlock::looks_overwritten),
            exec_shadowed: self.exec.as_ref().is_ok_and(|e| is_shadowed(e, name, expected)),
            live: &live,
            latched: &latched,
            read: &read,
            in_mapping: self.in_mapping(name, expected),
        });
        let effect = self.effect(name, expected, &read);
        Observation {
            variable: name.clone(),
            set_in: *place,
            process: 0,
            expected: Seen::Value(expected.clone()),
            exec,
            live,
            latched,
            read,
            effect,
            verdict,
            finding,
        }
    }

    fn latched(&self, name: &str) -> Latched {
        match &self.latched {
            LatchedView::Outside(set) => set.get(name),
            LatchedView::Told(list) => list
                .iter()
                .find(|(n, _)| n == name)
                .map_or_else(unsaid, |(_, latched)| latched.clone()),
            LatchedView::Unreadable(why) => Latched::Unreadable(why.clone()),
        }
    }

    /// What the communicator shows of a variable.
    fn effect(&self, name: &str, expected: &[u8], read: &Seen) -> Option<Effect> {
        match &self.communicator {
            _ if !effect::is_shown(name) => None,
            CommunicatorView::Unwanted => None,
            CommunicatorView::Unreadable(why) => Some(Effect::unreadable(why.to_string())),
            CommunicatorView::Made(of) => {
                let in_force = effect::in_force(name, of)?;
                let outcome = effect::outcome(name, expected, read, &in_force);
                Some(Effect::Known { in_force, outcome })
            }
        }
    }

    /// Python's mapping has the value and libc of the same process does not.
    fn in_mapping(&self, name: &str, expected: &[u8]) -> bool {
        let wanted = [name.as_bytes(), b"=", expected].concat();
        let parent = self.parent.iter().any(|p| {
            p.mapping.contains(&wanted)
                && p.live.as_ref().is_ok_and(|l| l.get(name.as_bytes()) != Some(expected))
        });
        parent || self.mapping.contains(&wanted)
    }
}

impl Reads {
    fn from(told: &Fields) -> Self {
        if told.first("version").is_none() {
            return Self::Unwitnessed(Unreadable::new("NCCL was not called"));
        }
        Self::Witnessed(told.clone())
    }

    /// The last answer: a string is not cached, so it is the one in force.
    fn last(&self, name: &str) -> Seen {
        let told = match self {
            Self::Unwitnessed(why) => return Seen::Unreadable(why.clone()),
            Self::Witnessed(told) => told,
        };
        let answers = told.iter().filter_map(|(key, field)| match key {
            "read" => split_assignment(field)
                .and_then(|(n, v)| (n == name.as_bytes()).then(|| Seen::Value(v.to_vec()))),
            "unset" => (field == name.as_bytes()).then_some(Seen::Absent),
            _ => None,
        });
        let unasked = || Seen::Unreadable(Unreadable::new("NCCL did not ask for it"));
        answers.last().unwrap_or_else(unasked)
    }
}

/// The places of a launch that set the same variable to another value.
fn rivals(index: usize, all: &[(Place, String, Vec<u8>)]) -> Vec<(Place, Vec<u8>)> {
    let (_, name, expected) = &all[index];
    all.iter()
        .filter(|(_, n, v)| n == name && v != expected)
        .map(|(place, _, value)| (*place, value.clone()))
        .collect()
}

/// The value is there, but not as the first entry of its name.
fn is_shadowed(block: &EnvBlock, name: &str, expected: &[u8]) -> bool {
    let mut values = block.variables().filter(|(n, _)| *n == name.as_bytes()).map(|(_, v)| v);
    values.next().is_some_and(|first| first != expected) && values.any(|v| v == expected)
}

fn unsaid() -> Latched {
    Latched::Unreadable(Unreadable::new("the probe did not say"))
}

/// What a call of NCCL gave; that the library could not even be loaded is told
/// by N instead.
fn failed_call(told: &Fields) -> Option<String> {
    let error = told.first("version").and(told.text("error"));
    error.or(told.text("init-error")).map(str::to_owned)
}

fn mapping(told: &Fields) -> Vec<Vec<u8>> {
    told.all("mapping").map(<[u8]>::to_vec).collect()
}

fn seen(block: &Result<EnvBlock, Unreadable>, name: &str) -> Seen {
    match block {
        Err(why) => Seen::Unreadable(why.clone()),
        Ok(block) => block.get(name.as_bytes()).map_or(Seen::Absent, |v| Seen::Value(v.to_vec())),
    }
}

/// The view that a remote probe read of itself, as `exec=NAME=VALUE` entries
/// after `has-exec`; when it told none, its own reason or ours.
fn told_or(told: &Fields, view: &str, why: Unreadable) -> Result<EnvBlock, Unreadable> {
    if told.first(&format!("has-{view}")).is_none() {
        return Err(told.text(&format!("no-{view}")).map_or(why, Unreadable::new));
    }
    let bytes = told.all(view).collect::<Vec<_>>().join(&0);
    EnvBlock::parse(&bytes)
}

/// N as a probe read it from itself: `latched=NAME=JSON`, or `no-latched=why`.
fn told_latched(told: &Fields) -> Option<LatchedView> {
    if let Some(why) = told.text("no-latched") {
        return Some(LatchedView::Unreadable(Unreadable::new(why)));
    }
    let list = told.assignments("latched").filter_map(|(name, json)| {
        let name = std::str::from_utf8(name).ok()?;
        Some((name.to_owned(), serde_json::from_slice(json).ok()?))
    });
    let list: Vec<_> = list.collect();
    (!list.is_empty()).then_some(LatchedView::Told(list))
}

/// The reason when the library could not be loaded.
fn not_called(told: &Fields) -> Option<LatchedView> {
    let why = told.text("error").filter(|_| told.first("version").is_none())?;
    Some(LatchedView::Unreadable(Unreadable::new(why)))
}

/// The readers of NCCL's memory, which read each library file once.
pub struct Readers {
    images: ImageCache,
    layouts: LayoutCache,
}

impl Readers {
    /// For probes that call this library, whatever its name.
    pub fn new(library: Option<&Path>) -> Self {
        let images = library.map_or_else(ImageCache::new, ImageCache::with);
        Self { images, layouts: LayoutCache::new() }
    }

    /// The library that the probe called, else the first one.
    ///
    /// # Errors
    /// No libnccl is mapped, or the map cannot be read.
    pub fn called(&self, pid: i32) -> Result<xray::Loaded, Unreadable> {
        let mut loaded = xray::loaded(pid, &self.images)?;
        if loaded.is_empty() {
            return Err(Unreadable::new("no libnccl is loaded in this process"));
        }
        let asked_for = loaded.iter().position(|l| self.images.was_asked_for(l));
        Ok(loaded.swap_remove(asked_for.unwrap_or(0)))
    }

    /// Rank 0 of the one communicator of a probe.
    ///
    /// # Errors
    /// There is none, or its library or memory cannot be read.
    pub fn communicator(
        &self,
        pid: i32,
        called: &xray::Loaded,
    ) -> Result<Communicator, Unreadable> {
        let all = xray::communicators(pid, called, &self.layouts, Duration::ZERO)?;
        let first = all.found.into_iter().find(|one| one.rank == 0);
        first.ok_or_else(|| {
            let notes = all.notes.iter().map(|note| format!("; {note}")).collect::<String>();
            Unreadable::new(format!("no communicator was found in this process{notes}"))
        })
    }

    /// N and the communicator, from outside where that works, else as told.
    fn views(&self, pid: i32, told: &Fields) -> (LatchedView, CommunicatorView) {
        if told.first("version").is_none() {
            let none = Unreadable::new("no libnccl was given to the probe");
            let latched = not_called(told).unwrap_or_else(|| LatchedView::Unreadable(none.clone()));
            return (latched, told_communicator(told, none));
        }
        let called = self.called(pid);
        let latched = called.as_ref().map_err(Clone::clone).and_then(|c| xray::latched(pid, c));
        let latched = match latched {
            Ok(set) => LatchedView::Outside(set),
            Err(why) => told_latched(told).unwrap_or(LatchedView::Unreadable(why)),
        };
        if told.first("init").is_none() {
            return (latched, told_communicator(told, Unreadable::new("NCCL made none")));
        }
        let communicator = match called.and_then(|called| self.communicator(pid, &called)) {
            Ok(one) => CommunicatorView::Made(Box::new(one)),
            Err(why) => told_communicator(told, why),
        };
        (latched, communicator)
    }
}

/// What a probe says of its communicator, else `why`.
fn told_communicator(told: &Fields, why: Unreadable) -> CommunicatorView {
    let unreadable = |why: &str| CommunicatorView::Unreadable(Unreadable::new(why));
    for key in ["init-error", "no-init"] {
        if let Some(why) = told.text(key) {
            return unreadable(why);
        }
    }
    if told.first("init").is_none() {
        return CommunicatorView::Unwanted;
    }
    match told.first("communicator").map(serde_json::from_slice) {
        Some(Ok(one)) => CommunicatorView::Made(Box::new(one)),
        _ => unreadable(told.text("no-communicator").unwrap_or(&why.0)),
    }
}
