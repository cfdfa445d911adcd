//! Takes `libnccl.so.2` out of a wheel (a zip file) and checks it against the
//! hash in the wheel's own RECORD. It trusts neither the sizes nor the names
//! in the file.

use crate::nccl::progress::{Event, Progress};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};
use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// Where every official wheel keeps its library.
const MEMBER: &str = "nvidia/nccl/lib/libnccl.so.2";

/// Larger than any library so far (2.32.3: 440 MB), smaller than a zip bomb.
const LIBRARY_LIMIT: u64 = 2 << 30;

/// Why a wheel was not unpacked.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// Not a wheel of NCCL, or a damaged one.
    #[error("{} is not a sound NCCL wheel: {why}; fetch it again", path.display())]
    Unsound {
        /// The wheel.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Reading or writing failed (no space left, for example).
    #[error("cannot unpack {}: {error}", path.display())]
    Io {
        /// The file that was read or written.
        path: PathBuf,
        /// What the kernel said.
        error: io::Error,
    },
}

/// What RECORD says about the library.
struct Recorded {
    sha256: Vec<u8>,
    bytes: u64,
}

/// Writes the library of `wheel` as `name` into the new directory `into`.
///
/// # Errors
/// [`UnpackError`]; `into` may then hold a part of the library.
pub(super) fn library(
    wheel: &Path,
    into: &Path,
    name: &str,
    progress: &mut Progress<'_>,
) -> Result<(), UnpackError> {
    let unsound = |why: String| UnpackError::Unsound { path: wheel.into(), why };
    let io = |path: &Path, error| UnpackError::Io { path: path.into(), error };
    let file = File::open(wheel).map_err(|error| io(wheel, error))?;
    let mut archive = zip::ZipArchive::new(io::BufReader::new(file))
        .map_err(|error| unsound(error.to_string()))?;
    let recorded = recorded(&mut archive).map_err(&unsound)?;
    let mut member = archive.by_name(MEMBER).map_err(|error| unsound(error.to_string()))?;
    DirBuilder::new().mode(0o700).create(into).map_err(|error| io(into, error))?;
    let target = into.join(name);
    let mut out = File::create_new(&target).map_err(|error| io(&target, error))?;
    let (bytes, sha256) = copy(&mut member, &mut out, recorded.bytes, progress)
        .map_err(|error| io(&target, error))?;
    let _ = progress(Event::Done); // stopping is asked for in `copy`
    if bytes != recorded.bytes || sha256 != recorded.sha256 {
        return Err(unsound(format!("{MEMBER} does not have the hash that RECORD gives")));
    }
    Ok(())
}

fn recorded<R: Read + io::Seek>(archive: &mut zip::ZipArchive<R>) -> Result<Recorded, String> {
    let records: Vec<String> = archive
        .file_names()
        .filter_map(|name| name.ok())
        .filter(|name| name.ends_with(".dist-info/RECORD") && name.matches('/').count() == 1)
        .map(|name| name.into_owned())
        .collect();
    let [name] = &records[..] else {
        return Err("it does not hold exactly one RECORD".into());
    };
    let mut text = String::new();
    let member = archive.by_name(name).map_err(|error| error.to_string())?;
    member.take(1 << 20).read_to_string(&mut text).map_err(|error| error.to_string())?;
    let row = text.lines().find_map(|line| line.strip_prefix(MEMBER)?.strip_prefix(','));
    row.and_then(row_values).ok_or_else(|| format!("its RECORD has no sha256 of {MEMBER}"))
}

/// Reads `sha256=<base64url>,<bytes>`.
fn row_values(row: &str) -> Option<Recorded> {
    let (hash, bytes) = row.trim().strip_prefix("sha256=")?.split_once(',')?;
    let sha256 = URL_SAFE_NO_PAD.decode(hash.trim_end_matches('=')).ok()?;
    let bytes = bytes.parse().ok().filter(|bytes| *bytes <= LIBRARY_LIMIT)?;
    Some(Recorded { sha256, bytes })
}

/// Copies at most one byte more than `limit`; returns the length and the hash.
fn copy(
    from: &mut impl Read,
    to: &mut impl Write,
    limit: u64,
    progress: &mut Progress<'_>,
) -> io::Result<(u64, Vec<u8>)> {
    let mut from = from.take(limit + 1);
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 256 << 10];
    let mut done = 0;
    loop {
        let read = from.read(&mut buffer)?;
        if read == 0 {
            return Ok((done, hash.finalize().to_vec()));
        }
        hash.update(&buffer[..read]);
        to.write_all(&buffer[..read])?;
        done += read as u64;
        if progress(Event::Bytes { what: "unpack", done, total: Some(limit) }).is_break() {
            return Err(io::Error::new(io::ErrorKind::Interrupted, "interrupted"));
        }
    }
}
