//! A launcher that the user names after `--`: `{probe}` in its command line is
//! replaced by a probe's command line. The probe may run in another namespace
//! or on another machine, so it carries what it has to know in its arguments
//! and reports over the socket, a file or its output, whichever gets through.

use super::driver::{Interrupted, add_sighting};
use super::failure::with_tail;
use super::hub::Arrival;
use super::observe::Sighting;
use super::running::STRAGGLERS;
use super::{Driver, SHELL, Set, frame, mark};
use crate::model::{Family, PathResult, Status};
use crate::probes::wire::Fields;
use crate::process;
use anyhow::{Context, Result, anyhow, bail};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// The id of the row that it gets.
const ID: &str = "custom";
const LAUNCH: &[Set] = &[SHELL];
/// The most output of a launcher that is searched for reports, in bytes.
const MAX_OUTPUT: u64 = 64 << 20;
/// How long to wait for more probes once the launcher has ended.
const AFTER_THE_FIRST: Duration = Duration::from_millis(200);

/// The user's command line.
pub struct Custom {
    argv: Vec<OsString>,
}

impl Custom {
    /// Checks that the command line has a place for the probe.
    ///
    /// # Errors
    /// It has none.
    pub fn new(argv: Vec<OsString>) -> Result<Self> {
        if !mark::is_in(&argv) {
            bail!(
                "the command after -- has no {{probe}}: write it where the program to start \
                 goes, such as: -- srun -n2 {{probe}}"
            );
        }
        Ok(Self { argv })
    }

    /// Runs it and observes every probe that it starts.
    pub fn run(&self, driver: &Driver) -> PathResult {
        let mut result = PathResult {
            id: ID.into(),
            family: Family::Custom,
            status: Status::Ran,
            reason: None,
            observations: Vec::new(),
        };
        match self.observe(driver) {
            Ok(sightings) => {
                for sighting in &sightings {
                    add_sighting(&mut result, sighting, LAUNCH, &driver.options.values);
                }
            }
            Err(error) => {
                let skipped = error.is::<Interrupted>();
                result.status = if skipped { Status::Skipped } else { Status::Failed };
                result.reason = Some(format!("{error:#}"));
            }
        }
        result
    }

    fn observe(&self, driver: &Driver) -> Result<Vec<Sighting>> {
        let number = driver.number();
        let folder = driver.folder.launch(number)?;
        let name = number.to_string();
        let token = format!("{:08x}{number}", fresh_number());
        let mut spec = driver.spec(&name, true);
        spec.push("token", &token).push("folder", folder.as_os_str().as_bytes());
        let names = driver.options.values.names();
        let probe = mark::Probe { exe: &driver.exe, spec: &spec, token: &token, names };
        let argv = mark::replace(&self.argv, &probe)?;
        let arrivals = driver.hub.expect(&name);
        let files = Files { output: folder.join("output"), errors: folder.join("errors"), folder };
        let child = start(driver, &argv, &files)?;
        let mut watch = Watch { driver, child, files, token, status: None, sightings: Vec::new() };
        watch.wait(&arrivals)?;
        driver.hub.forget(&name);
        watch.finish()
    }
}

/// Where a launcher's probes may report besides the socket.
struct Files {
    folder: PathBuf,
    output: PathBuf,
    errors: PathBuf,
}

/// A running launcher and what was seen of its probes.
struct Watch<'a> {
    driver: &'a Driver<'a>,
    child: Child,
    files: Files,
    token: String,
    status: Option<ExitStatus>,
    sightings: Vec<Sighting>,
}

impl Watch<'_> {
    /// Observes what arrives until the launcher has ended and nothing more is
    /// to be expected, or the time is over.
    fn wait(&mut self, arrivals: &Receiver<Arrival>) -> Result<()> {
        let mut until = Instant::now() + self.driver.options.limit;
        while !self.driver.stopped() && Instant::now() < until {
            match arrivals.recv_timeout(Duration::from_millis(5)) {
                Ok(probe) => {
                    self.sightings.push(Sighting::of(&probe, None, &self.driver.images));
                    probe.release();
                    if self.status.is_some() {
                        until = until.min(Instant::now() + AFTER_THE_FIRST);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if self.status.is_none() {
                self.status = self.child.try_wait().context("wait for the launcher")?;
                if let Some(patience) = self.patience()? {
                    until = until.min(Instant::now() + patience);
                }
            }
        }
        Ok(())
    }

    /// How much longer to wait for probes; `None` while the launcher runs. One
    /// that ended well may have put its probe into the background (`tmux
    /// new-session -d`).
    fn patience(&self) -> Result<Option<Duration>> {
        let Some(status) = self.status else { return Ok(None) };
        let told = !self.sightings.is_empty() || !self.reports()?.is_empty();
        Ok(Some(if status.success() && !told { STRAGGLERS } else { AFTER_THE_FIRST }))
    }

    /// Ends the launcher when it still runs; everything that was seen or told.
    fn finish(mut self) -> Result<Vec<Sighting>> {
        if self.status.is_none() {
            process::end_tree(self.child.id());
            let _ = self.child.wait();
        }
        let told = self.reports()?;
        self.sightings.extend(told.iter().map(Sighting::told));
        if self.sightings.is_empty() {
            let error = self.no_report();
            if error.is::<Interrupted>() {
                return Err(error);
            }
            let error = with_tail(error, &self.files.output);
            return Err(with_tail(error, &self.files.errors));
        }
        Ok(self.sightings)
    }

    /// Reports that came as files or in the launcher's output, each once.
    fn reports(&self) -> Result<Vec<Fields>> {
        let folder = &self.files.folder;
        let mut files: Vec<PathBuf> = fs::read_dir(folder)
            .with_context(|| format!("list {}", folder.display()))?
            .flatten()
            .map(|e| e.path())
            .filter(|p| p.extension() == Some(OsStr::new("report")))
            .collect();
        files.sort();
        files.push(self.files.output.clone());
        let mut text = Vec::new();
        for file in files {
            let opened = File::open(&file).with_context(|| format!("open {}", file.display()))?;
            opened.take(MAX_OUTPUT).read_to_end(&mut text).context("read a report")?;
            text.push(b'\n');
        }
        Ok(frame::decode(&text, &self.token))
    }

    fn no_report(&self) -> anyhow::Error {
        match self.status {
            Some(status) => anyhow!("no probe reported; the launcher ended with {status}"),
            None if self.driver.stopped() => Interrupted("interrupted while it ran").into(),
            None => anyhow!(
                "no probe reported within {} s, so the launcher was ended (a longer --timeout \
                 may help)",
                self.driver.options.limit.as_secs_f64()
            ),
        }
    }
}

/// The shell sets and exports the values, then starts the launcher, which
/// keeps our terminal: it may ask for a password.
fn start(driver: &Driver, argv: &[OsString], files: &Files) -> Result<Child> {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "exec \"$@\"", "sh"]).args(argv);
    command.env_clear().envs(driver.base_environment());
    for (name, value) in driver.options.values.of(SHELL) {
        command.env(name, OsString::from_vec(value));
    }
    let create = |p: &Path| File::create(p).with_context(|| format!("create {}", p.display()));
    command.stdin(Stdio::inherit()).stdout(create(&files.output)?).stderr(create(&files.errors)?);
    process::spawn(&mut command, false)
        .with_context(|| format!("start {}", Path::new(&argv[0]).display()))
}

/// Something that no earlier run's output can hold.
fn fresh_number() -> u32 {
    use std::hash::{BuildHasher, Hasher};
    let hasher = std::collections::hash_map::RandomState::new().build_hasher();
    u32::try_from(hasher.finish() & 0xffff_ffff).unwrap_or_default()
}
