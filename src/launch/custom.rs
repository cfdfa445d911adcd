//! A launcher that the user names after `--`: `{probe}` in its command line is
//! replaced by a probe's command line. The probe may run in another namespace
//! or on another machine, so it carries what it has to know in its arguments
//! and reports over the socket, a file or its output, whichever gets through.

use super::driver::{Interrupted, add_sighting};
use super::failure::with_words;
use super::hub::Arrival;
use super::observe::Sighting;
use super::running::STRAGGLERS;
use super::transcript::Transcript;
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
/// The most bytes of one report's file that are read.
const MAX_REPORT: u64 = 16 << 20;
/// How long a launcher's output may take to arrive after its end.
const SETTLE: Duration = Duration::from_millis(200);

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
            Ok((sightings, problem)) => {
                for sighting in &sightings {
                    add_sighting(&mut result, sighting, LAUNCH, &driver.options.values);
                }
                if problem.is_some() {
                    result.status = Status::Failed;
                    result.reason = problem;
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

    fn observe(&self, driver: &Driver) -> Result<(Vec<Sighting>, Option<String>)> {
        let number = driver.number();
        let folder = driver.folder.launch(number)?;
        let name = number.to_string();
        let token = format!("{:08x}{number}", fresh_number());
        let mut spec = driver.spec(&name, true);
        spec.push("token", &token)
            .push("folder", folder.as_os_str().as_bytes())
            .push("limit", driver.options.limit.as_secs_f64().to_string());
        let names = driver.options.values.names();
        let probe = mark::Probe { exe: &driver.exe, spec: &spec, token: &token, names };
        let argv = mark::replace(&self.argv, &probe)?;
        let arrivals = driver.hub.expect(&name);
        let (child, told) = start(driver, &argv, folder)?;
        let mut watch =
            Watch { driver, child, told, token, status: None, sightings: Vec::new(), lost: None };
        watch.wait(&arrivals)?;
        driver.hub.forget(&name);
        watch.finish()
    }
}

/// Where a launcher's probes may report besides the socket.
struct Told {
    /// Where a probe may leave a file.
    folder: PathBuf,
    output: Transcript,
    errors: Transcript,
}

/// A running launcher and what was seen of its probes.
struct Watch<'a> {
    driver: &'a Driver<'a>,
    child: Child,
    told: Told,
    token: String,
    status: Option<ExitStatus>,
    sightings: Vec<Sighting>,
    /// Why a probe that reported could not be observed.
    lost: Option<String>,
}

impl Watch<'_> {
    /// Observes what arrives until the launcher has ended and nothing more is
    /// to be expected, or the time is over.
    fn wait(&mut self, arrivals: &Receiver<Arrival>) -> Result<()> {
        let mut until = Instant::now() + self.driver.options.limit;
        while !self.driver.stopped() && Instant::now() < until {
            match arrivals.recv_timeout(Duration::from_millis(5)) {
                Ok(probe) => self.see(probe),
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
                Err(RecvTimeoutError::Timeout) if self.is_over()? => return Ok(()),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if self.status.is_none() {
                self.status = self.child.try_wait().context("wait for the launcher")?;
                if self.status.is_some() {
                    until = until.min(Instant::now() + STRAGGLERS);
                }
            }
        }
        Ok(())
    }

    fn see(&mut self, probe: Arrival) {
        match Sighting::of(&probe, None, &self.driver.readers) {
            Ok(sighting) => self.sightings.push(sighting),
            Err(why) => self.lost = Some(why),
        }
        probe.release();
    }

    /// The launcher has ended, and nothing that it started is left: one that
    /// ended well may have put probes into the background (`tmux new-session
    /// -d`). Where nothing was told yet, a probe may be under way that is no
    /// descendant (started by a server).
    fn is_over(&self) -> Result<bool> {
        let Some(status) = self.status else { return Ok(false) };
        let alive = !self.driver.descendants.now(self.driver.folder.mark()).is_empty();
        if alive {
            return Ok(false);
        }
        self.told.output.settle(SETTLE);
        let told = !self.sightings.is_empty() || !self.reports()?.is_empty();
        Ok(told || !status.success())
    }

    /// Ends the launcher when it still runs; everything that was seen or told,
    /// and a reason when that may not be all.
    fn finish(mut self) -> Result<(Vec<Sighting>, Option<String>)> {
        let ended = self.status.is_some() || process::end_tree(&mut self.child, STRAGGLERS);
        self.told.output.settle(SETTLE);
        let told = self.reports()?;
        self.sightings.extend(told.iter().map(Sighting::told));
        let mut problem = self.problem();
        if !ended {
            let pid = self.child.id();
            let text = format!("process {pid} could not be ended: is it another user's?");
            problem = Some(problem.map_or(text.clone(), |before| format!("{before}; {text}")));
        }
        if self.sightings.is_empty() {
            if self.driver.stopped() {
                return Err(Interrupted("interrupted while it ran").into());
            }
            let error = anyhow!(problem.unwrap_or_else(|| "no probe reported".into()));
            self.told.errors.settle(SETTLE);
            let words = self.told.errors.last_words().or_else(|| self.told.output.last_words());
            return Err(with_words(error, words));
        }
        Ok((self.sightings, problem))
    }

    /// Why nothing, or not everything, was seen.
    fn problem(&self) -> Option<String> {
        let count = self.sightings.len();
        match self.status {
            None if self.driver.stopped() => Some("interrupted while it ran".into()),
            None => Some(format!(
                "the launcher had not ended after {} s and was ended; probes seen: {count} (a \
                 longer --timeout may help)",
                self.driver.options.limit.as_secs_f64()
            )),
            Some(_) if self.lost.is_some() => self.lost.clone(),
            Some(status) if count == 0 => {
                Some(format!("no probe reported; the launcher ended with {status}"))
            }
            Some(_) => None,
        }
    }

    /// Reports that came as files or in the launcher's output, each once.
    fn reports(&self) -> Result<Vec<Fields>> {
        let folder = &self.told.folder;
        let listed = fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))?;
        let mut text = self.told.output.frames();
        for entry in listed.flatten().filter(|e| e.file_type().is_ok_and(|kind| kind.is_file())) {
            let path = entry.path();
            if path.extension() == Some(OsStr::new("report")) {
                let opened =
                    File::open(&path).with_context(|| format!("open {}", path.display()))?;
                opened.take(MAX_REPORT).read_to_end(&mut text).context("read a report")?;
                text.push(b'\n');
            }
        }
        Ok(frame::decode(&text, &self.token))
    }
}

/// The shell sets and exports the values, then starts the launcher, which
/// keeps our terminal: it may ask for a password.
fn start(driver: &Driver, argv: &[OsString], folder: PathBuf) -> Result<(Child, Told)> {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "exec \"$@\"", "sh"]).args(argv);
    command.env_clear().envs(driver.base_environment());
    for (name, value) in driver.options.values.of(SHELL) {
        command.env(name, OsString::from_vec(value));
    }
    command.stdin(Stdio::inherit()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = process::spawn(&mut command, false)
        .with_context(|| format!("start {}", Path::new(&argv[0]).display()))?;
    let output = child.stdout.take().context("the launcher has no stdout")?;
    let errors = child.stderr.take().context("the launcher has no stderr")?;
    let (output, errors) = (Transcript::follow(output), Transcript::follow(errors));
    Ok((child, Told { folder, output, errors }))
}

/// Something that no earlier run's output can hold.
fn fresh_number() -> u32 {
    use std::hash::{BuildHasher, Hasher};
    let hasher = std::collections::hash_map::RandomState::new().build_hasher();
    u32::try_from(hasher.finish() & 0xffff_ffff).unwrap_or_default()
}
