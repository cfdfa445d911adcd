//! Runs launches side by side: prepares a folder, starts the first process,
//! waits for the probe to report, observes it, lets it go, and makes sure that
//! nothing of the launch is left.

use super::hub::{Arrival, Hub};
use super::observe::Sighting;
use super::{LaunchPath, Need, Python, RunFolder, SHELL, Set, Stage, Top, Values};
use crate::model::{Observation, PathResult, Status};
use crate::nccl::xray::ImageCache;
use crate::probes::session::SPEC;
use crate::probes::wire::Fields;
use crate::process;
use anyhow::{Context, Result, anyhow, bail};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

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
    pub(super) images: ImageCache,
    stop: &'a AtomicBool,
    next: AtomicUsize,
}

/// How long a probe may still take to report after the first process ended
/// well: it may have been put into the background.
pub(super) const STRAGGLERS: Duration = Duration::from_secs(2);
/// The same after the first process failed.
const AFTER_FAILURE: Duration = Duration::from_millis(200);
/// How often a waiting launch looks at its first process and at `stop`.
const TICK: Duration = Duration::from_millis(5);
/// How much of a failed launch's output is worth reading, in bytes.
const TAIL: u64 = 64 << 10;

/// A signal ended the run before this launch had a result.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Interrupted(&'static str);

type LaunchResult = Result<Sighting>;

impl<'a> Driver<'a> {
    /// Opens the socket in the run's folder. From here on orphaned descendants
    /// are handed to this process.
    ///
    /// # Errors
    /// The socket cannot be made, or this program's own path is unknown.
    pub fn new(options: &'a Options, folder: &'a RunFolder, stop: &'a AtomicBool) -> Result<Self> {
        process::adopt_orphans();
        Ok(Self {
            options,
            folder,
            hub: Hub::listen(&folder.socket())?,
            exe: std::env::current_exe().context("find this program's own file")?,
            images: ImageCache::default(),
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
            jobs.extend(path.launches.iter().map(|&launch| (i, launch)));
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
        thread::scope(|scope| {
            for _ in 0..self.options.jobs.min(order.len()) {
                scope.spawn(|| {
                    while let Some(&job) = order.get(turn.fetch_add(1, Ordering::Relaxed)) {
                        let result = act(job);
                        results.lock().unwrap_or_else(PoisonError::into_inner).push((job, result));
                    }
                });
            }
        });
        let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
        results.sort_by_key(|(job, _)| *job);
        results
    }

    /// The reason why a path cannot be tried on this machine.
    fn why_not(&self, path: &LaunchPath) -> Option<String> {
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
            .push("probe_library", self.folder.probe_library().as_os_str().as_bytes())
            .push("substitute", "NCCL_SOCKET_IFNAME=lo");
        if let Some(library) = &self.options.library {
            spec.push("library", library.as_os_str().as_bytes());
        }
        if hide_home_conf {
            let conf = self.folder.empty_conf();
            spec.push_assignment("substitute", b"NCCL_CONF_FILE", conf.as_os_str().as_bytes());
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
            !name.as_bytes().starts_with(b"NCCL_") && !names.iter().any(|n| name == n.as_str())
        })
    }
}

impl Drop for Driver<'_> {
    fn drop(&mut self) {
        process::end_descendants(Duration::from_secs(2));
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

/// A started launch. Dropping it ends whatever is left of it.
struct Running<'a> {
    driver: &'a Driver<'a>,
    name: String,
    output: PathBuf,
    arrivals: Receiver<Arrival>,
    child: Child,
    deadline: Instant,
}

impl<'a> Running<'a> {
    fn prepare(
        driver: &'a Driver<'a>,
        path: &'static LaunchPath,
        launch: &'static [Set],
    ) -> Result<Self> {
        let number = driver.number();
        let folder = driver.folder.launch(number)?;
        let stage = Stage {
            id: path.id,
            folder: &folder,
            home: folder.join("home"),
            exe: &driver.exe,
            python: driver.options.python.as_ref().ok(),
            script: driver.folder.script(),
            values: &driver.options.values,
            launch,
        };
        let top = (path.start)(&stage)?;
        let name = number.to_string();
        write_spec(driver, &stage, &top, &name)?;
        let output = folder.join("output");
        let mut command = first_process(driver, &stage, &top, &output)?;
        let arrivals = driver.hub.expect(&name);
        let deadline = Instant::now() + driver.options.limit;
        let child = process::spawn(&mut command, true)
            .with_context(|| format!("start {}", Path::new(command.get_program()).display()))
            .map_err(|error| explain_size(error, &driver.options.values))?;
        Ok(Self { driver, name, output, arrivals, child, deadline })
    }

    /// Waits for the probe, observes it and lets it go.
    fn sighting(mut self) -> Result<Sighting> {
        let mut parent = None;
        let mut ended: Option<(ExitStatus, Instant)> = None;
        loop {
            match self.arrivals.recv_timeout(TICK) {
                Ok(arrival) if arrival.fields.text("role") == Some("parent") => {
                    parent = Some(arrival);
                }
                Ok(arrival) => {
                    let sighting = Sighting::of(&arrival, parent.as_ref(), &self.driver.images);
                    arrival.release();
                    return Ok(sighting);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("the driver's socket is gone"),
            }
            if self.driver.stopped() {
                return Err(Interrupted("interrupted while it ran").into());
            }
            if ended.is_none() {
                let status = self.child.try_wait().context("wait for the first process")?;
                ended = status.map(|status| (status, Instant::now()));
            }
            self.give_up(ended)?;
        }
    }

    /// An error once there is no hope that a probe reports.
    fn give_up(&self, ended: Option<(ExitStatus, Instant)>) -> Result<()> {
        if let Some((status, since)) = ended {
            let grace = if status.success() { STRAGGLERS } else { AFTER_FAILURE };
            if since.elapsed() > grace {
                let error = anyhow!("no probe reported; the first process ended with {status}");
                let error = explain_size(error, &self.driver.options.values);
                return Err(with_tail(error, &self.output));
            }
        }
        if Instant::now() > self.deadline {
            let limit = self.driver.options.limit.as_secs_f64();
            return Err(with_tail(
                anyhow!("no probe reported within {limit} s, so it was ended"),
                &self.output,
            ));
        }
        Ok(())
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        // Late probes of this launch are turned away, which ends them.
        self.driver.hub.forget(&self.name);
        let grace = if self.driver.stopped() { Duration::ZERO } else { STRAGGLERS };
        let until = self.deadline.min(Instant::now() + grace);
        while Instant::now() < until {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            thread::sleep(process::POLL);
        }
        process::end_tree(self.child.id());
        let _ = self.child.wait();
    }
}

fn write_spec(driver: &Driver, stage: &Stage, top: &Top, name: &str) -> Result<()> {
    let mut spec = driver.spec(name, top.hide_home_conf);
    for (key, set) in
        [("parent", super::PARENT), ("child", super::CHILD), ("listed", super::LAUNCHER)]
    {
        for (variable, value) in stage.sets(set) {
            spec.push_assignment(key, variable.as_bytes(), &value);
        }
    }
    let path = stage.folder.join(SPEC);
    fs::write(&path, spec.encode()).with_context(|| format!("write {}", path.display()))
}

/// The command that starts everything: a shell that exports its values when
/// this launch has the shell set some.
fn first_process(driver: &Driver, stage: &Stage, top: &Top, output: &Path) -> Result<Command> {
    let script = stage.folder.join("shell.sh");
    let text = shell_script(stage, top)?;
    fs::write(&script, text).with_context(|| format!("write {}", script.display()))?;
    let mut command = Command::new("/bin/sh");
    command.arg(&script).args(&top.argv);
    command.env_clear().envs(driver.base_environment());
    command.env("HOME", &stage.home).env("TMPDIR", stage.folder);
    command.envs(top.env.iter().map(|(name, value)| (name, value)));
    command.current_dir(top.cwd.as_deref().unwrap_or(stage.folder));
    let file = File::create(output).with_context(|| format!("create {}", output.display()))?;
    let both = file.try_clone().context("share the output file")?;
    command.stdin(Stdio::null()).stdout(file).stderr(both);
    Ok(command)
}

fn shell_script(stage: &Stage, top: &Top) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    for (name, value) in stage.sets(SHELL) {
        text.extend_from_slice(name.as_bytes());
        text.push(b'=');
        text.extend_from_slice(&shlex::bytes::try_quote(&value)?);
        text.push(b'\n');
        if top.export {
            text.extend_from_slice(format!("export {name}\n").as_bytes());
        }
    }
    text.extend_from_slice(top.script.as_bytes());
    Ok(text)
}

/// Adds the likely reason when a value is too long for any exec.
fn explain_size(error: anyhow::Error, values: &Values) -> anyhow::Error {
    match values.longest() {
        Some((name, size)) if size > 131_072 => error.context(format!(
            "{name}=... takes {size} bytes, and Linux passes at most 131072 in one string"
        )),
        _ => error,
    }
}

/// Adds the end of what a launch printed.
pub(super) fn with_tail(error: anyhow::Error, output: &Path) -> anyhow::Error {
    let bytes = tail(output).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    match text.lines().rev().find(|l| !l.trim().is_empty()) {
        Some(last) => {
            let last: String = last.trim().chars().take(400).collect();
            anyhow!("{error:#}; it printed last: {last}")
        }
        None => error,
    }
}

/// The last bytes of a file that may be huge.
fn tail(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let size = file.metadata()?.len();
    file.seek(SeekFrom::Start(size.saturating_sub(TAIL)))?;
    let mut bytes = Vec::new();
    file.take(TAIL).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A program of this name in PATH.
pub fn find_tool(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsStr::new("/usr/bin:/bin").into());
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|candidate| {
        nix::unistd::access(candidate, nix::unistd::AccessFlags::X_OK).is_ok()
            && candidate.is_file()
    })
}
