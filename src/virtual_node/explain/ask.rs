//! Runs virtual nodes and brings back all that they said: NCCL's log, its
//! estimates, the kernels that it would start, and what lies in the memory of
//! rank 0. Questions that differ only in what each communicator reads anew share
//! their ranks.

use super::super::node::{Node, NodeError, NodeSpec, Predicted, PredictedLaunch};
use crate::model::{Communicator, Failure, FailureKind};
use crate::nccl::collective::Collective;
use crate::nccl::find::Found;
use crate::nccl::image::NcclVersion;
use crate::nccl::log::{RankLog, collect};
use crate::nccl::scope::{self, Scope};
use crate::nccl::xray::{ImageCache, LayoutCache, communicators, loaded};
use std::collections::HashSet;
use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

/// The first version whose ncclGroupSimulateEnd works (2.22.3 has it).
const SIMULATES: NcclVersion = NcclVersion::new(2, 23, 4);

/// A machine, a library and settings.
#[derive(Clone)]
pub struct Side {
    /// What to start.
    pub spec: NodeSpec,
    /// The library.
    pub library: Arc<Found>,
    /// What has to be known about the machine and the settings to read the
    /// answers.
    pub notes: Vec<String>,
}

/// What is asked of a side.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Sizes in bytes, ascending.
    pub sizes: Vec<u64>,
    /// Each is asked for all sizes.
    pub collectives: Vec<Collective>,
}

impl Asked {
    /// The sizes of a collective that NCCL can be asked for: whole elements and
    /// equal parts.
    pub(super) fn sizes_of(&self, collective: Collective, ranks: usize) -> Vec<u64> {
        let whole = |&bytes: &u64| collective.call(bytes, ranks as u64).bytes;
        let mut sizes: Vec<u64> = self.sizes.iter().map(whole).collect();
        sizes.dedup();
        sizes
    }
}

/// All that one run brought back.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    /// What each rank logged, by rank.
    pub(super) ranks: Vec<RankLog>,
    /// What was enqueued, in order.
    pub(super) calls: Vec<Calls>,
    /// What rank 0 had decided after init.
    pub(super) communicator: Option<Communicator>,
    /// The variables that NCCL asked for and that were there.
    pub(super) reads: HashSet<OsString>,
    /// What NCCL refused.
    pub(super) failure: Option<Failure>,
}

/// The calls of one collective.
#[derive(Clone, Debug)]
pub(super) struct Calls {
    pub(super) collective: Collective,
    /// The sizes that were asked for.
    pub(super) sizes: Vec<u64>,
    /// What each rank would have started.
    pub(super) launches: Vec<PredictedLaunch>,
    /// NCCL's estimates.
    pub(super) times: Vec<Predicted>,
}

/// Asks, and keeps the last ranks for the next question.
#[derive(Default)]
pub(super) struct Asker {
    kept: Option<Kept>,
    layouts: LayoutCache,
    images: ImageCache,
}

/// Ranks without a communicator.
struct Kept {
    node: Node,
    spec: NodeSpec,
    /// The names that were changed for the last communicator.
    changed: Vec<OsString>,
}

type Variables = Vec<(OsString, OsString)>;

impl Asker {
    /// Asks once.
    ///
    /// # Errors
    /// The virtual node cannot be had, or its answer would be wrong.
    pub(super) fn ask(&mut self, side: &Side, asked: &Asked) -> Result<Outcome, NodeError> {
        let (again, once) = scopes(side);
        let mut kept = self.ranks(side, once, &again)?;
        let mut outcome = Outcome::default();
        let failure = self.run(&mut kept.node, side, asked, &mut outcome);
        outcome.ranks = logs(&kept.node, side);
        // A rank that is gone answers no more; its log still tells much.
        outcome.reads = kept.node.reads().unwrap_or_default().into_iter().collect();
        match failure {
            Err(error) => outcome.failure = Some(refused(error)?),
            // Proxies wait for GPUs to send, so such ranks end only by a signal.
            Ok(()) if uses_network(&outcome) => {}
            Ok(()) if kept.node.destroy().is_ok() => self.kept = Some(kept),
            // Ranks after a failure may be in any state.
            Ok(()) => {}
        }
        Ok(outcome)
    }

    /// Ranks with these variables: those of the last question when they fit.
    fn ranks(
        &mut self,
        side: &Side,
        once: Variables,
        again: &Variables,
    ) -> Result<Kept, NodeError> {
        let spec = NodeSpec { variables: once, ..side.spec.clone() };
        let mut kept = match self.kept.take() {
            Some(kept) if kept.spec == spec => kept,
            // The others end first: they need memory and time.
            old => {
                drop(old);
                Kept { node: Node::start(&spec)?, spec, changed: Vec::new() }
            }
        };
        let old = kept.changed.drain(..).map(|name| (name, None));
        let new = again.iter().map(|(name, value)| (name.clone(), Some(value.clone())));
        let changes: Vec<_> = old.chain(new).collect();
        if !changes.is_empty() {
            kept.node.set_variables(&changes)?;
        }
        kept.changed = again.iter().map(|(name, _)| name.clone()).collect();
        Ok(kept)
    }

    fn run(
        &self,
        node: &mut Node,
        side: &Side,
        asked: &Asked,
        outcome: &mut Outcome,
    ) -> Result<(), NodeError> {
        node.init()?;
        outcome.communicator = self.in_memory(node);
        for &collective in &asked.collectives {
            let sizes = asked.sizes_of(collective, side.spec.ranks);
            outcome.calls.push(Calls {
                collective,
                sizes: sizes.clone(),
                launches: Vec::new(),
                times: Vec::new(),
            });
            let launches = node.enqueue(collective, &sizes)?;
            if let Some(calls) = outcome.calls.last_mut() {
                calls.launches = launches;
            }
        }
        if side.library.image.version < SIMULATES {
            return Ok(());
        }
        for calls in &mut outcome.calls {
            calls.times = node.simulate(calls.collective, &calls.sizes)?;
        }
        Ok(())
    }

    /// The communicator of rank 0; it stands still between two steps.
    fn in_memory(&self, node: &Node) -> Option<Communicator> {
        let pid = node.pids().first()?.cast_signed();
        let loaded = loaded(pid, &self.images).ok()?;
        let found = communicators(pid, loaded.first()?, &self.layouts, Duration::ZERO).ok()?;
        found.found.into_iter().min_by_key(|one| one.rank)
    }
}

fn uses_network(outcome: &Outcome) -> bool {
    let mut connections = outcome.ranks.iter().flat_map(|rank| &rank.transports);
    connections.any(|one| one.via.starts_with("NET/"))
}

/// The variables of a side: what each communicator reads, and what ranks keep.
/// NCCL puts the lines of a conf file into the environment once in a process:
/// where there may be one, ranks are not shared.
fn scopes(side: &Side) -> (Variables, Variables) {
    let version = side.library.image.version;
    let conf = side.spec.conf_files
        || side.spec.variables.iter().any(|(name, _)| name == "NCCL_CONF_FILE");
    let again = |(name, _): &(OsString, OsString)| {
        let scope = name.to_str().map(|name| scope::of(name, version));
        !conf && scope == Some(Scope::Communicator)
    };
    side.spec.variables.iter().cloned().partition(again)
}

/// What NCCL itself did not do is part of the answer; all else is an error.
fn refused(error: NodeError) -> Result<Failure, NodeError> {
    let message = match &error {
        // The step is told beside it.
        NodeError::Failed { rank, why, .. } => format!("rank {rank}: {why}"),
        other => other.to_string(),
    };
    let (step, kind) = match error {
        NodeError::Failed { step, .. } => (step, FailureKind::Refused),
        NodeError::Crashed { step, .. } => (step, FailureKind::Crashed),
        NodeError::Ended { step, .. } => (step, FailureKind::Ended),
        NodeError::TooLate { step, .. } => (step, FailureKind::TooLate),
        error => return Err(error),
    };
    Ok(Failure { step: step.into(), message, kind })
}

/// What the ranks said about the last communicator, and what they say once in
/// their life.
fn logs(node: &Node, side: &Side) -> Vec<RankLog> {
    let version = side.library.image.version;
    let mut ranks = by_rank(&node.logs_since_init());
    for (rank, whole) in ranks.iter_mut().zip(by_rank(&node.logs())) {
        let once = |name: &str| scope::of(name, version) == Scope::Process;
        let known = |name: &str| rank.env.iter().any(|line| line.name == name);
        let early: Vec<_> =
            whole.env.into_iter().filter(|l| once(&l.name) && !known(&l.name)).collect();
        rank.env.splice(0..0, early);
        let kept: Vec<_> = whole
            .problems
            .into_iter()
            .filter(|p| p.text.starts_with("Invalid value") && !rank.problems.contains(p))
            .collect();
        rank.problems.splice(0..0, kept);
        rank.version = rank.version.take().or(whole.version);
    }
    ranks
}

/// Ranks by number; what was said before a rank was known stands with the rank
/// of the same process.
fn by_rank(logs: &[String]) -> Vec<RankLog> {
    let mut ranks: Vec<RankLog> = Vec::new();
    for log in logs {
        let mut all = collect(log.as_bytes());
        let early: Vec<RankLog> = all.extract_if(.., |rank| rank.member.is_none()).collect();
        if all.is_empty() {
            // Init failed before anybody said which rank it is.
            ranks.extend(early);
            continue;
        }
        for rank in early {
            all[0].env.splice(0..0, rank.env);
            all[0].problems.splice(0..0, rank.problems);
            all[0].version = all[0].version.take().or(rank.version);
        }
        ranks.append(&mut all);
    }
    ranks.sort_by_key(|rank| rank.member.map_or(u32::MAX, |member| member.rank));
    ranks
}
