//! What a variable makes of a communicator, by NCCL's own rules (measured with
//! 2.18.3 to 2.32.3), and whether that is what was set. Pure: the communicator
//! was read elsewhere.

use super::integer::{Parsed, parse_like_nccl};
use crate::model::{Communicator, InForce, Outcome, Pair, Seen};

/// The collective that settings are judged by.
const ALL_REDUCE: &str = "AllReduce";

/// What `NCCL_ALGO` can name, in any case.
const ALGORITHMS: [&str; 7] =
    ["Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT"];
/// What `NCCL_PROTO` can name, in any case.
const PROTOCOLS: [&str; 3] = ["LL", "LL128", "Simple"];
/// What a list can be for, since 2.24.
const FUNCTIONS: [&str; 5] = ["Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"];

/// Reads one part of a communicator; `None` when this version does not show it.
type Reader = fn(&Communicator) -> Option<InForce>;

/// The variables of which a communicator shows something, and what.
const SHOWN: [(&str, Reader); 11] = [
    ("NCCL_ALGO", |of| enabled(of, &ALGORITHMS, |pair| &pair.algorithm)),
    ("NCCL_PROTO", |of| enabled(of, &PROTOCOLS, |pair| &pair.protocol)),
    ("NCCL_BUFFSIZE", |of| number(of.buffers?.simple)),
    ("NCCL_LL_BUFFSIZE", |of| number(of.buffers?.ll)),
    ("NCCL_LL128_BUFFSIZE", |of| number(of.buffers?.ll128)),
    ("NCCL_MIN_NCHANNELS", |of| number(of.channels?)),
    ("NCCL_MAX_NCHANNELS", |of| number(of.channels?)),
    ("NCCL_NTHREADS", |of| threads(of, "Simple")),
    ("NCCL_LL128_NTHREADS", |of| threads(of, "LL128")),
    ("NCCL_MIN_CTAS", |of| number(of.min_ctas?)),
    ("NCCL_MAX_CTAS", |of| number(of.max_ctas?)),
];

/// The part of a communicator that a variable is about; `None` when there is
/// none, or this version does not show it.
pub fn in_force(variable: &str, of: &Communicator) -> Option<InForce> {
    SHOWN.iter().find(|(name, _)| *name == variable).and_then(|(_, read)| read(of))
}

/// Whether a communicator can show anything of this variable.
pub fn is_shown(variable: &str) -> bool {
    SHOWN.iter().any(|(name, _)| *name == variable)
}

fn number(n: impl TryInto<u64>) -> Option<InForce> {
    n.try_into().ok().map(InForce::Number)
}

/// The most threads of a ring with this protocol.
fn threads(of: &Communicator, protocol: &str) -> Option<InForce> {
    let mut pairs = of.pairs(ALL_REDUCE).iter();
    number(pairs.find(|p| p.algorithm == "Ring" && p.protocol == protocol)?.max_threads?)
}

/// What all-reduce may use, in NCCL's order.
fn enabled(of: &Communicator, known: &[&str], which: fn(&Pair) -> &String) -> Option<InForce> {
    if of.pairs(ALL_REDUCE).is_empty() {
        return None;
    }
    let on = |name: &&&str| of.pairs(ALL_REDUCE).iter().any(|p| p.enabled && which(p) == **name);
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
/// and is then for all; `^` in front of a list means all but these. Empty
/// entries and names are passed over, as NCCL does.
fn parse_list(variable: &str, value: &[u8]) -> List {
    let known: &[&'static str] = if variable == "NCCL_ALGO" { &ALGORITHMS } else { &PROTOCOLS };
    let Ok(text) = std::str::from_utf8(value) else { return List::Invalid };
    if text.is_empty() {
        return List::Unset;
    }
    let mut found = List::OtherFunctions;
    for (index, entry) in text.split(';').filter(|entry| !entry.is_empty()).enumerate() {
        let (function, list) = match entry.split_once(':') {
            Some((function, list)) => (Some(function), list),
            None if index == 0 => (None, entry),
            None => return List::Invalid,
        };
        let Some(names) = parse_names(list, known) else { return List::Invalid };
        match function {
            Some(name) if !is_one_of(name, &FUNCTIONS) => return List::Invalid,
            Some(name) if !name.eq_ignore_ascii_case("AllReduce") => {}
            _ if names.is_empty() => found = List::Unset,
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
    let given: Vec<&str> = list.split(',').filter(|name| !name.is_empty()).collect();
    if given.iter().any(|name| !is_one_of(name, known)) {
        return None;
    }
    Some(known.iter().copied().filter(|name| is_one_of(name, &given) != without).collect())
}

/// What to know about a variable whose value NCCL adjusted; `nothing_left` when
/// what it made of it is [`InForce::NOTHING`].
pub fn rule(variable: &str, nothing_left: bool) -> &'static str {
    match variable {
        _ if nothing_left => {
            "NCCL makes the communicator, and then refuses every all-reduce: name one more that \
             these GPUs can do, such as Ring for NCCL_ALGO, Simple for NCCL_PROTO"
        }
        "NCCL_ALGO" | "NCCL_PROTO" => {
            "NCCL before 2.24 passes over names that it does not know, and most such versions fall \
             back to others where nothing is left: see which are in force"
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

/// What a value would make of a communicator, by the rules here.
#[cfg(test)]
pub(crate) fn made_by(variable: &str, value: &[u8]) -> InForce {
    match parse_list(variable, value) {
        List::Names(names) if matches!(variable, "NCCL_ALGO" | "NCCL_PROTO") => {
            InForce::Names(names.into_iter().map(String::from).collect())
        }
        _ => match parse_like_nccl(value) {
            Parsed::Whole(n) => InForce::Number(u64::try_from(n).expect("a test value")),
            other => panic!("{variable}: {other:?}"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Unreadable;
    use proptest::prelude::*;

    fn names(list: &[&str]) -> InForce {
        InForce::Names(list.iter().map(|&name| name.into()).collect())
    }

    fn read(variable: &str, value: &str, now: &InForce) -> Option<Outcome> {
        let seen = Seen::Value(value.as_bytes().to_vec());
        outcome(variable, value.as_bytes(), &seen, now)
    }

    #[test]
    fn lists_are_compared_as_nccl_reads_them() {
        let rows = [
            ("NCCL_ALGO", "Ring", &["Ring"][..], Some(Outcome::AsSet)),
            ("NCCL_ALGO", "rInG,TREE", &["Tree", "Ring"], Some(Outcome::AsSet)),
            ("NCCL_ALGO", "Ring,NVLS", &["Ring"], Some(Outcome::AsSet)),
            ("NCCL_ALGO", "Tree", &["Tree", "Ring"], Some(Outcome::Adjusted)),
            ("NCCL_ALGO", "^Ring", &["Tree", "NVLS"], Some(Outcome::AsSet)),
            ("NCCL_ALGO", "^Ring", &["Tree", "Ring"], Some(Outcome::Adjusted)),
            ("NCCL_ALGO", "NVLS", &[], Some(Outcome::Adjusted)),
            ("NCCL_ALGO", "bogus", &["Ring"], Some(Outcome::Adjusted)),
            ("NCCL_ALGO", "Ring ,Tree", &["Ring"], Some(Outcome::Adjusted)),
            ("NCCL_ALGO", "broadcast:ring", &["Tree"], None),
            ("NCCL_ALGO", "broadcast:ring;allreduce:tree", &["Tree"], Some(Outcome::AsSet)),
            ("NCCL_ALGO", "tree;allreduce:ring", &["Ring"], Some(Outcome::AsSet)),
            ("NCCL_ALGO", "allreduce:tree;ring", &["Tree"], Some(Outcome::Adjusted)),
            ("NCCL_ALGO", "", &["Tree"], None),
            ("NCCL_ALGO", ",", &["Tree"], None),
            ("NCCL_ALGO", "^", &["Tree"], Some(Outcome::AsSet)),
            ("NCCL_ALGO", ";Ring,,;", &["Ring"], Some(Outcome::AsSet)),
            ("NCCL_PROTO", "ll128", &["LL128"], Some(Outcome::AsSet)),
            ("NCCL_PROTO", "^LL128", &["LL", "Simple"], Some(Outcome::AsSet)),
            ("NCCL_PROTO", "Ring", &["Simple"], Some(Outcome::Adjusted)),
        ];
        for (variable, value, now, expected) in rows {
            assert_eq!(read(variable, value, &names(now)), expected, "{variable}={value} {now:?}");
        }
    }

    #[test]
    fn numbers_are_compared_by_what_the_variable_means() {
        let rows = [
            ("NCCL_BUFFSIZE", "1048576", 1 << 20, Some(Outcome::AsSet)),
            ("NCCL_BUFFSIZE", "0x100000", 1 << 20, Some(Outcome::AsSet)),
            ("NCCL_BUFFSIZE", "8M", 8, Some(Outcome::Adjusted)),
            ("NCCL_BUFFSIZE", "-2", 4 << 20, None),
            ("NCCL_BUFFSIZE", "", 4 << 20, None),
            ("NCCL_BUFFSIZE", "99999999999999999999", 4 << 20, None),
            ("NCCL_NTHREADS", "100", 512, Some(Outcome::Adjusted)),
            ("NCCL_MIN_NCHANNELS", "4", 24, Some(Outcome::AsSet)),
            ("NCCL_MIN_NCHANNELS", "200", 64, Some(Outcome::Adjusted)),
            ("NCCL_MAX_NCHANNELS", "4", 4, Some(Outcome::AsSet)),
            ("NCCL_MAX_NCHANNELS", "4", 5, Some(Outcome::Adjusted)),
            ("NCCL_MAX_NCHANNELS", "0", 1, None),
        ];
        for (variable, value, now, expected) in rows {
            let now = InForce::Number(now);
            assert_eq!(read(variable, value, &now), expected, "{variable}={value}");
        }
    }

    #[test]
    fn a_value_that_nccl_did_not_read_has_no_effect() {
        let (now, value) = (names(&["Ring"]), b"Ring");
        let other = Seen::Value(b"ring".to_vec());
        assert_eq!(outcome("NCCL_ALGO", value, &Seen::Absent, &now), Some(Outcome::NotTaken));
        assert_eq!(outcome("NCCL_ALGO", value, &other, &now), Some(Outcome::NotTaken));
        let unknown = Seen::Unreadable(Unreadable::new("nobody saw it"));
        assert_eq!(outcome("NCCL_ALGO", value, &unknown, &now), Some(Outcome::AsSet));
        let now = names(&["Tree"]);
        assert_eq!(outcome("NCCL_ALGO", value, &unknown, &now), Some(Outcome::NotTaken));
    }

    #[test]
    fn only_what_nccl_refuses_is_called_refused() {
        for value in ["bogus", "Ring,bogus", "^x", "nofunc:ring", "Ring;Tree", "Ring "] {
            assert!(is_refused("NCCL_ALGO", value.as_bytes()), "{value}");
        }
        for value in [
            "",
            "Ring",
            "Ring,",
            "allreduce:ring;",
            "^NVLS,pat",
            "allreduce:tree;reduce:ring",
            "collnetchain",
        ] {
            assert!(!is_refused("NCCL_ALGO", value.as_bytes()), "{value}");
        }
        assert!(!is_refused("NCCL_BUFFSIZE", b"x"));
        assert!(is_refused("NCCL_PROTO", b"Ring"));
    }

    proptest! {
        #[test]
        fn any_list_is_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let now = names(&["Ring"]);
            for variable in ["NCCL_ALGO", "NCCL_PROTO"] {
                let seen = Seen::Value(bytes.clone());
                let _ = (outcome(variable, &bytes, &seen, &now), is_refused(variable, &bytes));
            }
        }

        #[test]
        fn a_list_and_its_complement_split_the_names(
            chosen in proptest::sample::subsequence(ALGORITHMS.to_vec(), 1..7)
        ) {
            let list = chosen.join(",");
            let parsed = |text: String| match parse_list("NCCL_ALGO", text.as_bytes()) {
                List::Names(names) => names,
                other => panic!("{text}: {other:?}"),
            };
            let (with, without) = (parsed(list.to_lowercase()), parsed(format!("^{list}")));
            prop_assert_eq!(with.len() + without.len(), ALGORITHMS.len());
            prop_assert!(with.iter().all(|name| chosen.contains(name) && !without.contains(name)));
        }
    }
}
