//! What a variable makes of a communicator, by NCCL's own rules (measured with
//! 2.18.3 to 2.32.3), and whether that is what was set. Pure: the communicator
//! was read elsewhere.

use super::verdict::{Parsed, parse_like_nccl};
use crate::model::{Communicator, InForce, Outcome, Pair, Seen};

/// What `NCCL_ALGO` can name, in any case.
const ALGORITHMS: [&str; 7] =
    ["Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT"];
/// What `NCCL_PROTO` can name, in any case.
const PROTOCOLS: [&str; 3] = ["LL", "LL128", "Simple"];
/// What a list can be for, since 2.24.
const FUNCTIONS: [&str; 5] = ["Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"];

/// The part of a communicator that a variable is about; `None` when there is
/// none, or this version does not show it.
pub fn in_force(variable: &str, of: &Communicator) -> Option<InForce> {
    let number = |n: Option<u64>| n.map(InForce::Number);
    let threads = |algorithm, protocol| {
        let pair =
            of.all_reduce.iter().find(|p| p.algorithm == algorithm && p.protocol == protocol);
        number(pair.and_then(|pair| pair.max_threads).map(u64::from))
    };
    let ctas = |n: Option<i32>| number(n.and_then(|n| u64::try_from(n).ok()));
    match variable {
        "NCCL_ALGO" => enabled(of, &ALGORITHMS, |pair| &pair.algorithm),
        "NCCL_PROTO" => enabled(of, &PROTOCOLS, |pair| &pair.protocol),
        "NCCL_BUFFSIZE" => number(of.buffers.map(|b| b.simple)),
        "NCCL_LL_BUFFSIZE" => number(of.buffers.map(|b| b.ll)),
        "NCCL_LL128_BUFFSIZE" => number(of.buffers.map(|b| b.ll128)),
        "NCCL_MIN_NCHANNELS" | "NCCL_MAX_NCHANNELS" => number(of.channels.map(u64::from)),
        "NCCL_NTHREADS" => threads("Ring", "Simple"),
        "NCCL_LL128_NTHREADS" => threads("Ring", "LL128"),
        "NCCL_MIN_CTAS" => ctas(of.min_ctas),
        "NCCL_MAX_CTAS" => ctas(of.max_ctas),
        _ => None,
    }
}

/// Whether a communicator can show anything of this variable.
pub fn is_shown(variable: &str) -> bool {
    const SHOWN: [&str; 11] = [
        "NCCL_ALGO",
        "NCCL_PROTO",
        "NCCL_BUFFSIZE",
        "NCCL_LL_BUFFSIZE",
        "NCCL_LL128_BUFFSIZE",
        "NCCL_MIN_NCHANNELS",
        "NCCL_MAX_NCHANNELS",
        "NCCL_NTHREADS",
        "NCCL_LL128_NTHREADS",
        "NCCL_MIN_CTAS",
        "NCCL_MAX_CTAS",
    ];
    SHOWN.contains(&variable)
}

/// What all-reduce may use, in NCCL's order.
fn enabled(of: &Communicator, known: &[&str], which: fn(&Pair) -> &String) -> Option<InForce> {
    if of.all_reduce.is_empty() {
        return None;
    }
    let on = |name: &&&str| of.all_reduce.iter().any(|p| p.enabled && which(p) == **name);
    Some(InForce::Names(known.iter().filter(on).map(|&name| name.to_owned()).collect()))
}

/// Whether what is in force is what `expected` makes of it. `read` is what
/// NCCL's `getenv` was answered. `None` when it cannot be told.
pub fn outcome(variable: &str, expected: &[u8], read: &Seen, now: &InForce) -> Option<Outcome> {
    match read {
        Seen::Absent => return Some(Outcome::NotTaken),
        Seen::Value(other) if other != expected => return Some(Outcome::NotTaken),
        // Without a record of the read, only what is in force can tell.
        Seen::Value(_) | Seen::Unreadable(_) => {}
    }
    let fits = match now {
        InForce::Names(names) => names_fit(variable, expected, names),
        InForce::Number(number) => number_fits(variable, expected, *number),
    };
    match (fits?, read) {
        (true, _) => Some(Outcome::AsSet),
        (false, Seen::Value(_)) => Some(Outcome::Adjusted),
        (false, _) => Some(Outcome::NotTaken),
    }
}

fn names_fit(variable: &str, expected: &[u8], names: &[String]) -> Option<bool> {
    let asked = match parse_list(variable, expected) {
        List::Unset | List::OtherFunctions => return None,
        List::Invalid => return Some(false),
        List::Names(asked) => asked,
    };
    // What the machine cannot do is not in force though it was asked for.
    Some(!names.is_empty() && names.iter().all(|name| asked.contains(&name.as_str())))
}

fn number_fits(variable: &str, expected: &[u8], now: u64) -> Option<bool> {
    let asked = match parse_like_nccl(expected) {
        Parsed::Empty => return None,
        // NCCL takes its default, which is not known here.
        Parsed::Overflow => return None,
        Parsed::Prefix(_) | Parsed::Octal(_) => return Some(false),
        Parsed::Whole(n) => n,
    };
    // Negative numbers are NCCL's own marks for "unset".
    let asked = u64::try_from(asked).ok()?;
    match variable {
        "NCCL_MIN_NCHANNELS" | "NCCL_MAX_NCHANNELS" if asked == 0 => None,
        "NCCL_MIN_NCHANNELS" => Some(now >= asked),
        "NCCL_MAX_NCHANNELS" => Some(now <= asked),
        _ => Some(now == asked),
    }
}

/// What a value of `NCCL_ALGO` or `NCCL_PROTO` says about all-reduce.
#[derive(Debug, PartialEq, Eq)]
enum List {
    /// Nothing at all: the value is empty.
    Unset,
    /// Lists for other functions only.
    OtherFunctions,
    /// Something that NCCL does not know: 2.24 and newer refuse it, older ones
    /// pass it over.
    Invalid,
    /// These are allowed.
    Names(Vec<&'static str>),
}

/// Whether NCCL 2.24 and newer make no communicator with this value.
pub fn is_refused(variable: &str, value: &[u8]) -> bool {
    matches!(variable, "NCCL_ALGO" | "NCCL_PROTO") && parse_list(variable, value) == List::Invalid
}

/// `[function:]list;function:list...`; only the first may lack its function,
/// and is then for all; `^` in front of a list means all but these.
fn parse_list(variable: &str, value: &[u8]) -> List {
    let known: &[&'static str] = if variable == "NCCL_ALGO" { &ALGORITHMS } else { &PROTOCOLS };
    let Ok(text) = std::str::from_utf8(value) else { return List::Invalid };
    if text.is_empty() {
        return List::Unset;
    }
    let mut found = List::OtherFunctions;
    for (index, entry) in text.split(';').enumerate() {
        let (function, list) = match entry.split_once(':') {
            Some((function, list)) => (Some(function), list),
            None if index == 0 => (None, entry),
            None => return List::Invalid,
        };
        let Some(names) = parse_names(list, known) else { return List::Invalid };
        match function {
            Some(name) if !is_one_of(name, &FUNCTIONS) => return List::Invalid,
            Some(name) if !name.eq_ignore_ascii_case("AllReduce") => {}
            _ => found = List::Names(names),
        }
    }
    found
}

fn is_one_of(name: &str, known: &[&str]) -> bool {
    known.iter().any(|k| k.eq_ignore_ascii_case(name))
}

/// The names of one list; `None` when one is not known.
fn parse_names(list: &str, known: &[&'static str]) -> Option<Vec<&'static str>> {
    let (without, list) = match list.strip_prefix('^') {
        Some(rest) => (true, rest),
        None => (false, list),
    };
    let given: Vec<&str> = list.split(',').collect();
    if given.iter().any(|name| !is_one_of(name, known)) {
        return None;
    }
    Some(known.iter().copied().filter(|name| is_one_of(name, &given) != without).collect())
}

/// What to know about a variable whose value NCCL adjusted.
pub fn rule(variable: &str) -> &'static str {
    match variable {
        "NCCL_ALGO" | "NCCL_PROTO" => {
            "NCCL before 2.24 passes over names that it does not know, and falls back to others \
             where nothing is left: see which are in force"
        }
        "NCCL_NTHREADS" => "NCCL takes a multiple of 32 from 64 to 512; else it takes a limit",
        "NCCL_LL128_NTHREADS" => {
            "NCCL takes a multiple of 32 from 160 to 640; else it takes a limit"
        }
        "NCCL_MIN_NCHANNELS" | "NCCL_MAX_NCHANNELS" => {
            "NCCL never has more channels than its own limit (32, or 64 in newer versions) or \
             another variable allows"
        }
        "NCCL_MIN_CTAS" | "NCCL_MAX_CTAS" => {
            "NCCL takes 1 up to its own limit, and makes the smaller of both out of a minimum \
             above the maximum"
        }
        _ => "write what is in force, or a value that NCCL takes as it is",
    }
}
