//! Fetches a libnccl from NVIDIA's wheel through the user's own pip into the
//! cache. Which index, proxy or certificate is used is pip's business and
//! configuration; only the one library is unpacked, after its hash was checked.

mod pip;
mod unpack;

pub use pip::PipError;
pub use unpack::UnpackError;

use super::cache::{Cache, CacheError, Entry, LIBRARY, Lease};
use super::image::NcclVersion;
use super::progress::{Event, Progress};
use std::cmp::Ordering;
use std::fmt;
use std::fs::File;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

/// The CUDA major version that a wheel is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cuda {
    /// `nvidia-nccl-cu12`.
    #[default]
    Cu12,
    /// `nvidia-nccl-cu13`.
    Cu13,
}

impl fmt::Display for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cu12 => "cu12",
            Self::Cu13 => "cu13",
        })
    }
}

/// One wheel: `2.27.7`, `2.26.2.post1` or `2.28.9+cu13`.
///
/// Its `Display` form (`2.27.7-cu12`) is the name of its cache entry, so the
/// grammar is strict: numbers and dots, nothing that could be a path or an
/// option of pip.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Wheel {
    numbers: [u32; 3],
    post: Option<u32>,
    cuda: Cuda,
}

impl Wheel {
    /// The version as pip spells it, such as `2.26.2.post1`.
    pub fn version(&self) -> String {
        let [major, minor, patch] = self.numbers;
        match self.post {
            Some(post) => format!("{major}.{minor}.{patch}.post{post}"),
            None => format!("{major}.{minor}.{patch}"),
        }
    }

    /// The NCCL that is in it.
    pub fn release(&self) -> NcclVersion {
        let [major, minor, patch] = self.numbers;
        NcclVersion::new(major, minor, patch)
    }

    /// The CUDA major version that it is for.
    pub fn cuda(&self) -> Cuda {
        self.cuda
    }

    /// As a user writes it behind `pip:`, such as `2.27.7+cu12`.
    pub fn spelling(&self) -> String {
        format!("{}+{}", self.version(), self.cuda)
    }

    /// What pip is asked for, such as `nvidia-nccl-cu12==2.27.7`.
    pub fn requirement(&self) -> String {
        format!("nvidia-nccl-{}=={}", self.cuda, self.version())
    }

    /// The wheel that a cache entry of this name is about.
    pub(super) fn from_entry_name(name: &str) -> Option<Self> {
        let wheel: Self = name.replacen('-', "+", 1).parse().ok()?;
        (wheel.to_string() == name).then_some(wheel)
    }

    fn key(&self) -> ([u32; 3], Option<u32>, Cuda) {
        (self.numbers, self.post, self.cuda)
    }
}

impl Ord for Wheel {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl PartialOrd for Wheel {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Wheel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.version(), self.cuda)
    }
}

/// The text names no wheel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} names no NCCL wheel; write VERSION or VERSION+cu13, such as 2.27.7")]
pub struct BadWheel(pub String);

impl FromStr for Wheel {
    type Err = BadWheel;

    fn from_str(text: &str) -> Result<Self, BadWheel> {
        parse(text).ok_or_else(|| BadWheel(text.chars().take(64).collect()))
    }
}

fn parse(text: &str) -> Option<Wheel> {
    let (version, cuda) = match text.split_once('+') {
        None => (text, Cuda::default()),
        Some((version, "cu12")) => (version, Cuda::Cu12),
        Some((version, "cu13")) => (version, Cuda::Cu13),
        Some(_) => return None,
    };
    let (version, post) = match version.split_once(".post") {
        None => (version, None),
        Some((version, post)) => (version, Some(number(post)?)),
    };
    let mut parts = version.split('.').map(number);
    let numbers = [parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some(Wheel { numbers, post, cuda })
}

/// One to five digits without a leading zero, so that equal wheels are spelt equally.
fn number(text: &str) -> Option<u32> {
    let plain = (1..=5).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_digit())
        && (text == "0" || !text.starts_with('0'));
    plain.then(|| text.parse().ok()).flatten()
}

/// Why a wheel could not be had.
#[derive(Debug, thiserror::Error)]
pub enum WheelError {
    /// pip did not deliver.
    #[error(transparent)]
    Pip(#[from] PipError),
    /// What pip delivered is not what it should be.
    #[error(transparent)]
    Unpack(#[from] UnpackError),
    /// The cache could not be used.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// The caller asked to stop.
    #[error("interrupted while another run fetched NCCL {0}")]
    Interrupted(String),
}

/// The library of `wheel`: from the cache, else fetched through `python`
/// (default: `python3` on PATH). Two runs at once fetch once: the second waits.
///
/// # Errors
/// [`WheelError`]; nothing half-done stays behind under the entry's name.
pub fn fetch(
    wheel: &Wheel,
    cache: &Cache,
    python: Option<&Path>,
    progress: &mut Progress<'_>,
) -> Result<(Entry, Lease), WheelError> {
    loop {
        if let Some(found) = cache.get(wheel)? {
            return Ok(found);
        }
        fetch_into_cache(wheel, cache, python, progress)?;
    }
}

fn fetch_into_cache(
    wheel: &Wheel,
    cache: &Cache,
    python: Option<&Path>,
    progress: &mut Progress<'_>,
) -> Result<(), WheelError> {
    let lock = match cache.try_lock(wheel)? {
        Some(lock) => lock,
        None => {
            let text = format!("another run is fetching NCCL {}; waiting for it", wheel.spelling());
            let _ = progress(Event::Note(&text)); // the wait asks again soon
            wait_for_lock(wheel, cache, progress)?
        }
    };
    if cache.list()?.iter().any(|entry| entry.wheel == *wheel) {
        return Ok(()); // the run that held the lock before us did it
    }
    cache.remove_abandoned(wheel)?;
    let root = cache.root().display();
    let text = format!("fetching {} with pip (about 350 MB) into {root}", wheel.requirement());
    let _ = progress(Event::Note(&text)); // the download asks again soon
    let partial = cache.partial(wheel)?;
    let file = pip::download(wheel, partial.path(), python, progress)?;
    let finished = partial.path().join("entry");
    unpack::library(&file, &finished, LIBRARY, progress)?;
    let entry = cache.publish(wheel, &finished)?;
    drop(lock);
    let text = format!("NCCL {} is now in {}", wheel.spelling(), entry.path.display());
    let _ = progress(Event::Note(&text)); // it is done: nothing left to stop
    Ok(())
}

/// The lock once another run has given it back.
fn wait_for_lock(
    wheel: &Wheel,
    cache: &Cache,
    progress: &mut Progress<'_>,
) -> Result<File, WheelError> {
    loop {
        if progress(Event::Waiting).is_break() {
            return Err(WheelError::Interrupted(wheel.spelling()));
        }
        std::thread::sleep(Duration::from_millis(100));
        if let Some(lock) = cache.try_lock(wheel)? {
            return Ok(lock);
        }
    }
}

#[cfg(test)]
mod tests;
