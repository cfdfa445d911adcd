//! One step with all processes of a virtual node: asks each, waits for all, and
//! finds the error that explains the most. What the steps are is `node`'s work.

use super::error::{NodeError, system};
use super::process::{GRACE, Worker};
use crate::probes::channel::write_message;
use crate::probes::wire::Fields;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

/// Sends a request to each worker, then collects all answers.
pub(super) fn talk(
    workers: &mut [Worker],
    deadline: Instant,
    limit: Duration,
    step: &'static str,
    request: impl Fn(&Worker) -> Fields,
) -> Result<Vec<Fields>, NodeError> {
    for worker in workers.iter_mut() {
        let request = request(worker);
        // Why a rank is gone shows when its answer is read.
        let _ = write_message(&mut worker.stream, &request);
    }
    let mut answers: Vec<Option<Fields>> = workers.iter().map(|_| None).collect();
    let mut until = deadline;
    let mut gone = None;
    while let Some(ready) = wait_for_some(workers, &answers, until)? {
        for at in ready {
            let answer = workers[at].answer(step).unwrap_or_else(|error| {
                gone.get_or_insert(error);
                Fields::default()
            });
            let failed =
                ["missing", "refused", "error"].iter().any(|key| answer.first(key).is_some());
            if failed || gone.is_some() {
                // The others may wait for this rank for ever, or be about to
                // say more in their logs.
                until = until.min(Instant::now() + GRACE);
            }
            answers[at] = Some(answer);
        }
    }
    missing(&answers)?;
    // Why others fail then is that this one is gone.
    gone.map_or(Ok(()), Err)?;
    judge(workers, &answers, step)?;
    let hint = || {
        workers
            .iter()
            .map(|worker| worker.hint(""))
            .find(|hint| !hint.is_empty())
            .unwrap_or_default()
    };
    let all: Option<Vec<Fields>> = answers.into_iter().collect();
    all.ok_or_else(|| NodeError::TooLate { step, limit, hint: hint() })
}

/// The workers without an answer that have one now; `None` when all have
/// answered or the time is over.
fn wait_for_some(
    workers: &[Worker],
    answers: &[Option<Fields>],
    until: Instant,
) -> Result<Option<Vec<usize>>, NodeError> {
    let waiting: Vec<usize> = (0..workers.len()).filter(|&at| answers[at].is_none()).collect();
    if waiting.is_empty() {
        return Ok(None);
    }
    loop {
        let fds =
            waiting.iter().map(|&at| PollFd::new(workers[at].stream.as_fd(), PollFlags::POLLIN));
        let mut fds: Vec<PollFd<'_>> = fds.collect();
        let left = until.saturating_duration_since(Instant::now());
        let timeout =
            PollTimeout::try_from(left.as_micros().div_ceil(1000)).unwrap_or(PollTimeout::MAX);
        match poll(&mut fds, timeout) {
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(system("wait for the ranks")(errno.into())),
            Ok(0) if Instant::now() >= until => return Ok(None),
            Ok(_) => {
                let ready = fds.iter().map(|fd| fd.any().unwrap_or(false));
                return Ok(Some(
                    waiting
                        .iter()
                        .zip(ready)
                        .filter(|(_, ready)| *ready)
                        .map(|(&at, _)| at)
                        .collect(),
                ));
            }
        }
    }
}

/// An error when NCCL called what the node does not have.
fn missing(answers: &[Option<Fields>]) -> Result<(), NodeError> {
    let all = || answers.iter().flatten();
    let mut names: Vec<_> =
        all().flat_map(|a| a.all("missing")).map(String::from_utf8_lossy).collect();
    names.sort();
    names.dedup();
    if !names.is_empty() {
        return Err(NodeError::Missing { names: names.join(", ") });
    }
    Ok(())
}

/// Turns what ranks report into an error: first what explains the most.
fn judge(
    workers: &[Worker],
    answers: &[Option<Fields>],
    step: &'static str,
) -> Result<(), NodeError> {
    for key in ["refused", "error"] {
        for (worker, answer) in workers.iter().zip(answers) {
            if let Some(why) = answer.as_ref().and_then(|answer| answer.first(key)) {
                let why = String::from_utf8_lossy(why);
                let why = format!("{why}{}", worker.hint(&why));
                return Err(NodeError::Failed { rank: worker.first, step, why });
            }
        }
    }
    Ok(())
}
