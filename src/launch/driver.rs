//! Runs launches side by side: what all of them share, which can be tried
//! here, in which order they run, and how their results come together by path.
//! One launch is in `running`.

use super::hub::Hub;
use super::observe::{Readers, Sighting};
use super::running::Running;
use super::{Gpus, LaunchPath, Need, Python, RunFolder, Set, Values};
use crate::model::{Observation, PathResult, Status};
use crate::nccl::surroundings;
use crate::probes::wire::Fields;
use crate::process::Descendants;
use anyhow::{Context, Result};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// What a run needs to know besides the paths.
pub struct Options {
    /// The library that probes load; none: E and L only.
    pub library: Option<PathBuf>,
    /// The interpreter for Python paths, or why there is none.
    pub python: Result<Python, String>,
    /// The values to set.
    pub values: Values,
    /// The longest that one launch may take.
    pub limit: Duration,
    /// How many launches run at once.
    pub jobs: usize,
}

/// The state that all launches of a run share.
pub struct Driver<'a> {
    pub(super) options: &'a Options,
    pub(super) folder: &'a RunFolder,
    pub(super) hub: Hub,
    pub(super) exe: PathBuf,
    pub(super) readers: Readers,
    gpus: &'a Gpus,
    pub(super) descendants: Descendants,
    pub(super) stop: &'a AtomicBool,
    next: AtomicUsize,
}

/// A signal ended the run before this launch had a result.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Interrupted(pub(super) &'static str);

type LaunchResult = Result<Sighting>;

impl<'a> Driver<'a> {
    /// Opens the socket in the run's folder. From here on orphaned descendants
    /// are handed to this process.
    ///
    /// # Errors
    /// The socket cannot be made, or this program's own path is unknown.
    pub fn new(
        options: &'a Options,
        folder: &'a RunFolder,
        gpus: &'a Gpus,
        stop: &'a AtomicBool,
    ) -> Result<Self> {
        let descendants = Descendants::adopt();
        Ok(Self {
            descendants,
            options,
            folder,
            hub: Hub::listen(&folder.socket())?,
            exe: std::env::current_exe().context("find this program's own file")?,
            readers: Readers::new(options.library.as_deref()),
            gpus,
            stop,
            next: AtomicUsize::new(0),
        })
    }

    /// Tries every path; the results come in the order of `paths`. `done` is
    /// called after each launch with the number of launches still to come.
    pub fn run(
        &self,
        paths: &[&'static LaunchPath],
        done: &(dyn Fn(usize) + Sync),
    ) -> Vec<PathResult> {
        let skips: Vec<Option<String>> = paths.iter().map(|p| self.why_not(p)).collect();
        let mut jobs: Vec<(usize, &'static [Set])> = Vec::new();
        for (i, path) in paths.iter().enumerate().filter(|(i, _)| skips[*i].is_none()) {
            jobs.extend(self.launches(path).map(|launch| (i, launch)));
        }
        let mut order: Vec<usize> = (0..jobs.len()).collect();
        // The slow ones first, so that none is left over at the end.
        order.sort_by_key(|&job| paths[jobs[job].0].needs.is_empty());
        let results = self.work_off(&order, &|job| {
            let (path, launch) = jobs[job];
            let result = self.launch(paths[path], launch);
            done(jobs.len());
            result
        });
        self.assemble(paths, skips, &jobs, results)
    }

    /// Puts the results of launches together by path.
    fn assemble(
        &self,
        paths: &[&'static LaunchPath],
        skips: Vec<Option<String>>,
        jobs: &[(usize, &'static [Set])],
        results: Vec<(usize, LaunchResult)>,
    ) -> Vec<PathResult> {
        let mut list: Vec<PathResult> = paths
            .iter()
            .zip(skips)
            .map(|(path, skip)| PathResult {
                id: path.id.into(),
                family: path.family,
                status: if skip.is_some() { Status::Skipped } else { Status::Ran },
                reason: skip,
                observations: Vec::new(),
            })
            .collect();
        for (job, result) in results {
            let (path, launch) = jobs[job];
            let entry = &mut list[path];
            match result {
                Ok(sighting) => add_sighting(entry, &sighting, launch, &self.options.values),
                Err(error) if error.is::<Interrupted>() => {
                    if entry.status == Status::Ran {
                        entry.status = Status::Skipped;
                    }
                    add_reason(entry, error.to_string());
                }
                Err(error) => {
                    let places: Vec<_> = launch.iter().map(|s| s.place.word()).collect();
                    entry.status = Status::Failed;
                    add_reason(entry, format!("set in {}: {error:#}", places.join("+")));
                }
            }
        }
        list
    }

    /// Runs jobs on several threads; gives each job's result with its index.
    fn work_off(
        &self,
        order: &[usize],
        act: &(dyn Fn(usize) -> LaunchResult + Sync),
    ) -> Vec<(usize, LaunchResult)> {
        let turn = AtomicUsize::new(0);
        let results = Mutex::new(Vec::new());
        let work = || {
            while let Some(&job) = order.get(turn.fetch_add(1, Ordering::Relaxed)) {
                let result = act(job);
                results.lock().unwrap_or_else(PoisonError::into_inner).push((job, result));
            }
        };
        thread::scope(|scope| {
            for _ in 1..self.gpus.jobs(self.options.jobs).min(order.len()) {
                // Where no more threads can be had, fewer do the work.
                let _ = thread::Builder::new().spawn_scoped(scope, work);
            }
            work();
        });
        let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
        results.sort_by_key(|(job, _)| *job);
        results
    }

    /// The launches of a path that say something about the values of this run.
    fn launches(&self, path: &LaunchPath) -> impl Iterator<Item = &'static [Set]> {
        let apart = self.options.values.tell_places_apart();
        path.launches.iter().copied().filter(move |launch| apart || launch.len() == 1)
    }

    /// The reason why a path cannot be tried on this machine.
    fn why_not(&self, path: &LaunchPath) -> Option<String> {
        if self.launches(path).next().is_none() {
            let text = "it compares places, and with -e all places set the same value";
            return Some(text.into());
        }
        path.needs.iter().find_map(|need| match (need, &self.options.python) {
            (Need::Tool(name), _) => {
                find_tool(name).is_none().then(|| format!("there is no {name} in PATH"))
            }
            (Need::Python | Need::PythonModule(_), Err(why)) => Some(why.clone()),
            (Need::Python, Ok(_)) => None,
            (Need::PythonModule(module), Ok(python)) => (!python.has(module)).then(|| {
                let exe = python.executable.display();
                format!("{exe} has no module {module} ({exe} -m pip install {module})")
            }),
        })
    }

    fn launch(&self, path: &'static LaunchPath, launch: &'static [Set]) -> LaunchResult {
        if self.stopped() {
            return Err(Interrupted("interrupted before it was tried").into());
        }
        Running::prepare(self, path, launch)?.sighting()
    }

    pub(super) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// A number that no other launch of this run has.
    pub(super) fn number(&self) -> usize {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// The fields that every probe needs.
    pub(super) fn spec(&self, launch: &str, hide_home_conf: bool) -> Fields {
        let mut spec = Fields::default();
        spec.push("launch", launch)
            .push("socket", self.folder.socket().as_os_str().as_bytes())
            .push("exe", self.exe.as_os_str().as_bytes())
            .push("probe_library", self.folder.probe_library().as_os_str().as_bytes());
        self.folder.keep_out(&mut spec, hide_home_conf);
        if let Some(library) = &self.options.library {
            spec.push("library", library.as_os_str().as_bytes());
            self.gpus.tell(&mut spec, self.options.limit);
        }
        for name in self.options.values.names() {
            spec.push("name", name);
        }
        spec
    }

    /// Our environment without NCCL's variables and the watched ones.
    pub(super) fn base_environment(&self) -> impl Iterator<Item = (OsString, OsString)> {
        let names: Vec<String> =
            self.options.values.names().into_iter().map(str::to_owned).collect();
        std::env::vars_os().filter(move |(name, _)| {
            !surroundings::is_setting(name) && !names.iter().any(|n| name == n.as_str())
        })
    }
}

impl Drop for Driver<'_> {
    fn drop(&mut self) {
        self.descendants.end(self.folder.mark(), Duration::from_secs(2));
    }
}

/// Adds what was seen of one process to its path's result.
pub(super) fn add_sighting(
    result: &mut PathResult,
    sighting: &Sighting,
    launch: &[Set],
    values: &Values,
) {
    let process = result.observations.last().map_or(0, |o| o.process + 1);
    let observations = sighting.observations(launch, values).into_iter();
    result.observations.extend(observations.map(|o| Observation { process, ..o }));
    if let Some(complaint) = &sighting.nccl_error {
        add_reason(result, complaint.clone());
    }
}

/// Adds a reason that is not there yet.
pub(super) fn add_reason(result: &mut PathResult, reason: String) {
    result.reason = Some(match result.reason.take() {
        Some(before) if before.split("; ").any(|known| known == reason) => before,
        Some(before) => format!("{before}; {reason}"),
        None => reason,
    });
}

/// A program of this name in PATH.
pub fn find_tool(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsStr::new("/usr/bin:/bin").into());
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|candidate| {
        nix::unistd::access(candidate, nix::unistd::AccessFlags::X_OK).is_ok()
            && candidate.is_file()
    })
}
