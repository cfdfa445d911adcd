//! Runs a virtual node once and brings back all that it said: NCCL's log, its
//! estimates, the kernels that it would start, and what lies in the memory of
//! rank 0.

use super::super::node::{Node, NodeError, NodeSpec, Predicted, PredictedLaunch};
use crate::model::{Communicator, Failure};
use crate::nccl::find::Found;
use crate::nccl::log::{RankLog, collect};
use crate::nccl::xray::{ImageCache, LayoutCache, communicators, loaded};
use std::sync::Arc;
use std::time::Duration;

/// A machine, a library and settings.
#[derive(Clone)]
pub struct Side {
    /// What to start.
    pub spec: NodeSpec,
    /// The library.
    pub library: Arc<Found>,
}

impl Side {
    /// What has to be known about the machine to read its answers.
    pub(super) fn notes(&self) -> Vec<String> {
        Vec::new()
    }
}

/// What is asked of a side.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Sizes in bytes, ascending.
    pub sizes: Vec<u64>,
}

/// All that one run brought back.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    /// What each rank logged, by rank.
    pub(super) ranks: Vec<RankLog>,
    /// What each rank would have started.
    pub(super) launches: Vec<PredictedLaunch>,
    /// NCCL's estimates.
    pub(super) times: Vec<Predicted>,
    /// What rank 0 had decided after init.
    pub(super) communicator: Option<Communicator>,
    /// What NCCL refused.
    pub(super) failure: Option<Failure>,
}

/// Asks once.
///
/// # Errors
/// The virtual node cannot be had, or its answer would be wrong.
pub(super) fn ask(side: &Side, asked: &Asked) -> Result<Outcome, NodeError> {
    let mut outcome = Outcome::default();
    let mut node = Node::start(&side.spec)?;
    let failure = run(&mut node, asked, &mut outcome);
    outcome.ranks = by_rank(&node.logs());
    outcome.failure = failure.map_or_else(|error| refused(error).map(Some), |()| Ok(None))?;
    Ok(outcome)
}

fn run(node: &mut Node, asked: &Asked, outcome: &mut Outcome) -> Result<(), NodeError> {
    node.init()?;
    outcome.communicator = in_memory(node);
    outcome.launches = node.enqueue(&asked.sizes)?;
    // Older versions have no estimates; that is no failure.
    outcome.times = node.simulate(&asked.sizes).unwrap_or_default();
    Ok(())
}

/// What NCCL itself did not do is part of the answer; all else is an error.
fn refused(error: NodeError) -> Result<Failure, NodeError> {
    match &error {
        NodeError::Failed { step, .. }
        | NodeError::Ended { step, .. }
        | NodeError::TooLate { step, .. } => {
            let crashed = matches!(error, NodeError::Ended { .. });
            Ok(Failure { step: (*step).into(), message: error.to_string(), crashed })
        }
        _ => Err(error),
    }
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

/// The communicator of rank 0; it stands still between two steps.
fn in_memory(node: &Node) -> Option<Communicator> {
    let pid = node.pids().first()?.cast_signed();
    let loaded = loaded(pid, &ImageCache::new()).ok()?;
    let found = communicators(pid, loaded.first()?, &LayoutCache::new(), Duration::ZERO).ok()?;
    found.found.into_iter().min_by_key(|one| one.rank)
}
