//! Turns `--nccl auto | PATH | pip:VERSION[+cu12|+cu13] | pid:PID` into one
//! libnccl file, and says why that one and which others there are. It reads
//! candidates with `image` and never loads them.

mod auto;

use super::cache::{Cache, CacheError, Entry, Lease};
use super::image::{Image, ImageError, NcclVersion};
use super::progress::Progress;
use super::wheel::{self, BadWheel, Wheel, WheelError};
use super::xray::{self, ImageCache};
use crate::model::Unreadable;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The file name of every official build.
const LIBRARY: &str = "libnccl.so.2";

/// What the user asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// Whatever this shell's programs would load.
    #[default]
    Auto,
    /// A file, or a directory that holds a `libnccl.so.2`.
    Path(PathBuf),
    /// A wheel, fetched through pip when it is not in the cache.
    Pip(Wheel),
    /// What the running process with this id has loaded.
    Pid(i32),
}

/// The text is no choice of a library.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadChoice {
    /// Nothing was given.
    #[error("no library named; use auto, a path, pip:VERSION or pid:PID")]
    Empty,
    /// `pip:` with something that is no version.
    #[error(transparent)]
    Wheel(#[from] BadWheel),
    /// `pid:` with something that is no process id.
    #[error("{0:?} is not a process id; write pid: and a positive number, such as pid:4242")]
    Pid(String),
    /// `WORD:...` with a word that is not known.
    #[error("{0:?} is neither auto, pip:VERSION nor pid:PID; for a file of that name write ./{0}")]
    Scheme(String),
}

impl Choice {
    /// Reads what was given on a command line, where a path may be any bytes.
    ///
    /// # Errors
    /// [`BadChoice`], worded as a usage error.
    pub fn parse(text: &OsStr) -> Result<Self, BadChoice> {
        let Some(plain) = text.to_str() else { return Ok(Self::Path(text.into())) };
        let scheme = plain.split_once(':').filter(|(word, _)| !word.contains('/'));
        match (plain, scheme) {
            ("", _) => Err(BadChoice::Empty),
            ("auto", _) => Ok(Self::Auto),
            (_, Some(("pip", wheel))) => Ok(Self::Pip(wheel.parse()?)),
            (_, Some(("pid", pid))) => match pid.parse() {
                Ok(number) if number > 0 && !pid.starts_with('+') => Ok(Self::Pid(number)),
                _ => Err(BadChoice::Pid(pid.chars().take(64).collect())),
            },
            (_, Some(_)) => Err(BadChoice::Scheme(plain.chars().take(200).collect())),
            (path, None) => Ok(Self::Path(path.into())),
        }
    }
}

impl FromStr for Choice {
    type Err = BadChoice;

    fn from_str(text: &str) -> Result<Self, BadChoice> {
        Self::parse(OsStr::new(text))
    }
}

/// A libnccl that was seen on the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Where it is.
    pub path: PathBuf,
    /// Which place led to it, such as `LD_LIBRARY_PATH`.
    pub how: String,
    /// Its version, or why it cannot be used.
    pub version: Result<NcclVersion, String>,
}

/// The library to use.
#[derive(Debug)]
pub struct Found {
    /// The file, as it can be opened from here.
    pub path: PathBuf,
    /// Which place led to it, for a person: `the path that was given`.
    pub how: String,
    /// What the file says.
    pub image: Image,
    /// The other candidates, in the order in which they would have been taken.
    pub others: Vec<Candidate>,
    /// Keeps a fetched library from being cleaned away meanwhile.
    #[expect(dead_code, reason = "held only for the lock on it")]
    lease: Option<Lease>,
}

/// Why there is no library to use.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// No place had one.
    #[error(
        "found no {LIBRARY} (looked at {}); {}, or name one with --nccl /path/to/{LIBRARY}",
        looked.join(", "), fetch_one(fetched)
    )]
    NotFound {
        /// The places, in order.
        looked: Vec<String>,
        /// What is in the cache, spelt as for `--nccl`.
        fetched: Vec<String>,
    },
    /// There are some, and none can be read.
    #[error(
        "no {LIBRARY} that was found can be used: {}; fetch one with --nccl pip:2.27.7 \
         (about 350 MB), or name one with --nccl /path/to/{LIBRARY}", why.join("; ")
    )]
    NoneUsable {
        /// One reason each.
        why: Vec<String>,
    },
    /// An environment variable of this tool says something odd.
    #[error("NCCLDIAG_NCCL: {0}")]
    Variable(BadChoice),
    /// An environment variable of this tool names something that cannot be used.
    #[error("NCCLDIAG_NCCL: {0}")]
    FromVariable(Box<Self>),
    /// The named file is no libnccl.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// pip did not deliver.
    #[error(
        "{0}\nfetch another version with --nccl pip:VERSION, or name a library with \
         --nccl /path/to/{LIBRARY}"
    )]
    Wheel(Box<WheelError>),
    /// The cache could not be used.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// The process could not be read.
    #[error("cannot take the library of process {pid}: {why}")]
    Pid {
        /// The process.
        pid: i32,
        /// What went wrong.
        why: Unreadable,
    },
}

impl From<WheelError> for FindError {
    fn from(error: WheelError) -> Self {
        Self::Wheel(Box::new(error))
    }
}

fn fetch_one(fetched: &[String]) -> String {
    match fetched.last() {
        Some(newest) => format!("use one that was fetched before with --nccl {newest}"),
        None => "fetch one with --nccl pip:2.27.7 (about 350 MB)".into(),
    }
}

/// Finds the library that `choice` names. `python` is the interpreter whose
/// packages are looked at and whose pip is used (default: `python3` on PATH);
/// it is started only when that matters.
///
/// # Errors
/// [`FindError`]; each message names a way on.
pub fn resolve(
    choice: &Choice,
    python: Option<&Path>,
    progress: &mut Progress<'_>,
) -> Result<Found, FindError> {
    match choice {
        Choice::Auto => auto::resolve(python, progress),
        Choice::Path(path) => from_path(path, "the path that was given"),
        Choice::Pip(wheel) => from_wheel(wheel, python, progress),
        Choice::Pid(pid) => from_process(*pid),
    }
}

fn from_path(path: &Path, how: &str) -> Result<Found, FindError> {
    let inside = path.join(LIBRARY);
    // A FIFO or a device is not touched here: `Image::open` looks first.
    let path = if path.is_dir() && inside.exists() { inside } else { path.to_path_buf() };
    let image = Image::open(&path)?;
    // The loader takes a name without a slash for a library to search for.
    let path = std::path::absolute(&path).unwrap_or(path);
    Ok(Found { path, how: how.into(), image, others: Vec::new(), lease: None })
}

fn from_wheel(
    wheel: &Wheel,
    python: Option<&Path>,
    progress: &mut Progress<'_>,
) -> Result<Found, FindError> {
    let (entry, lease) = wheel::fetch(wheel, &Cache::user()?, python, progress)?;
    Ok(fetched(wheel, entry, lease)?)
}

fn fetched(wheel: &Wheel, entry: Entry, lease: Lease) -> Result<Found, ImageError> {
    let image = Image::open(&entry.path)?;
    let how = format!("the wheel {}", wheel.requirement());
    Ok(Found { path: entry.path, how, image, others: Vec::new(), lease: Some(lease) })
}

/// A fetched library, and how `--nccl` names it.
#[derive(Debug)]
pub struct Fetched {
    /// The library.
    pub found: Found,
    /// Such as `pip:2.32.3+cu12`.
    pub spelling: String,
}

/// The newest library in the user's cache that is newer than this one and for
/// the same CUDA. Nothing is fetched; a cache that cannot be read has none.
pub fn newer_fetched(than: &Image) -> Option<Fetched> {
    let cuda = than.cuda.as_deref().and_then(|cuda| cuda.split('.').next());
    let fits = |wheel: &Wheel| {
        wheel.release() > than.version
            && cuda.is_none_or(|major| wheel.cuda().to_string() == format!("cu{major}"))
    };
    let cache = Cache::user().ok()?;
    let newest = cache.list().ok()?.into_iter().map(|entry| entry.wheel).rfind(fits)?;
    let (entry, lease) = cache.get(&newest).ok()??;
    let found = fetched(&newest, entry, lease).ok()?;
    Some(Fetched { found, spelling: format!("pip:{}", newest.spelling()) })
}

fn from_process(pid: i32) -> Result<Found, FindError> {
    let failed = |why: Unreadable| FindError::Pid { pid, why };
    let loaded = xray::loaded(pid, &ImageCache::new()).map_err(failed)?;
    let mut candidates = Vec::new();
    let mut found: Option<(PathBuf, Image)> = None;
    for library in &loaded {
        let reachable = reachable(pid, library);
        if found.is_none()
            && let Ok(both) = reachable
        {
            found = Some(both);
            continue;
        }
        let version = library.image.as_ref().map(|image| image.version);
        candidates.push(Candidate {
            path: library.path.clone(),
            how: format!("process {pid}"),
            version: version.map_err(ToString::to_string).and_then(|v| reachable.map(|_| v)),
        });
    }
    let Some((path, image)) = found else {
        let why = candidates.into_iter().find_map(|candidate| candidate.version.err());
        let none = "it has no libnccl loaded (or NCCL was linked statically)";
        return Err(failed(Unreadable::new(why.unwrap_or_else(|| none.into()))));
    };
    let how = format!("the library that process {pid} has loaded");
    Ok(Found { path, how, image, others: candidates, lease: None })
}

/// A path from which this process can open the very library, also when the
/// other one lives in a container.
fn reachable(pid: i32, library: &xray::Loaded) -> Result<(PathBuf, Image), String> {
    let wanted = library.image.as_ref().map_err(ToString::to_string)?;
    let inside = library.path.strip_prefix("/").unwrap_or(&library.path);
    let inside = Path::new(&format!("/proc/{pid}/root")).join(inside);
    for path in [&library.path, &inside] {
        if let Ok(image) = Image::open(path)
            && (image.version, &image.build_id) == (wanted.version, &wanted.build_id)
        {
            return Ok((path.clone(), image));
        }
    }
    Err(format!("{} was deleted or replaced since it was loaded", library.path.display()))
}

#[cfg(test)]
mod tests;
