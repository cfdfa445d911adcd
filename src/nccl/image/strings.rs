//! What a libnccl says in its own read-only strings: the banner and the names
//! of all settings. Works on a stripped library too.

use super::version::NcclVersion;
use std::collections::BTreeSet;

/// The version and the CUDA version (such as `12.9`) that the banner
/// `NCCL version 2.27.7+cuda12.9` names.
pub(super) fn banner(rodata: &[u8]) -> Option<(NcclVersion, Option<String>)> {
    const START: &[u8] = b"NCCL version ";
    memchr::memmem::find_iter(rodata, START).find_map(|at| {
        let tail = &rodata[at + START.len()..];
        let line = &tail[..tail.iter().take(64).position(|byte| *byte < b' ')?];
        let line = std::str::from_utf8(line).ok()?;
        let digits = line.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(line.len());
        let version = line[..digits].parse().ok()?;
        let cuda = line.split_once("cuda").map(|(_, cuda)| cuda.trim().to_owned());
        Some((version, cuda.filter(|cuda| !cuda.is_empty())))
    })
}

/// All NUL-terminated strings that are exactly `NCCL_` and A-Z, 0-9 or `_`.
///
/// The byte before one need not be NUL, because constants without an end may
/// lie there: `NCCL_NET_PLUGIN` follows `/dev/shm/nccl-XX` in 2.18.3. Only the
/// end of a sentence and of a longer name are told apart.
pub(super) fn names(rodata: &[u8]) -> BTreeSet<String> {
    memchr::memmem::find_iter(rodata, b"NCCL_")
        .filter(|&at| at == 0 || !matches!(rodata[at - 1], b' ' | b'_'))
        .filter_map(|at| setting_name(super::source::c_string(rodata, at as u64)?))
        .collect()
}

/// `text` as a name, when it is spelt like a setting of NCCL.
pub(super) fn setting_name(text: &[u8]) -> Option<String> {
    let rest = text.strip_prefix(b"NCCL_")?;
    let plain = |b: &u8| b.is_ascii_uppercase() || b.is_ascii_digit() || *b == b'_';
    let fits = !rest.is_empty() && rest.len() < 128 && rest.iter().all(plain);
    fits.then(|| String::from_utf8_lossy(text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_banner_is_found_among_look_alikes() {
        let rodata = b"NCCL version %s\0x\0NCCL version 2.18.3+cuda12.1\0";
        let expected = (NcclVersion::new(2, 18, 3), Some("12.1".to_owned()));
        assert_eq!(banner(rodata), Some(expected));
        assert_eq!(banner(b"NCCL version mismatch\0"), None);
        assert_eq!(banner(b"NCCL version 2.18.3"), None, "not terminated");
    }

    #[test]
    fn only_whole_strings_are_names() {
        let rodata = b"NCCL_ALGO\0see NCCL_FOO\0NCCL_\0NCCL_X set\0\xbfNCCL_PROTO\0\
            TORCH_NCCL_BAR\0NCCL_CUT";
        let found: Vec<_> = names(rodata).into_iter().collect();
        assert_eq!(found, ["NCCL_ALGO", "NCCL_PROTO"]);
    }
}
