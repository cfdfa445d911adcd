//! Turns verdicts into findings: one for each kind of loss and cause, with
//! every path that it was seen on.

use super::LaunchPath;
use super::site::RUNS_AT_START;
use crate::model::{
    Code, Effect, Finding, Latched, Observation, Outcome, PathResult, Place, Seen, Status, Verdict,
};
use crate::nccl::effect;
use crate::nccl::image::Image;
use crate::nccl::integer::{Parsed, parse_like_nccl};

/// What the texts need to know besides the observations.
pub struct Context<'a> {
    /// The library's own knowledge of names, when there is one.
    pub image: Option<&'a Image>,
    /// The built-in paths that were asked for.
    pub paths: &'a [&'static LaunchPath],
    /// The probes made a communicator.
    pub communicator: bool,
    /// They could not, though they were to.
    pub no_communicator: bool,
}

/// The findings of these results, by severity and number.
pub fn findings(results: &[PathResult], context: &Context) -> Vec<Finding> {
    let mut list: Vec<Entry> = Vec::new();
    for result in results {
        if let Some((code, message, fix)) = about_path(result) {
            add(&mut list, None, (code, message, fix), result.id.clone());
        }
        let path = context.paths.iter().find(|p| p.id == result.id).copied();
        for observation in &result.observations {
            let place = format!("{}/{}", result.id, observation.set_in);
            let variable = Some(&*observation.variable);
            if let Some(text) = about_effect(observation) {
                add(&mut list, variable, text, place.clone());
            }
            let Some(code) = observation.finding else { continue };
            if code == Code::NcclNotChecked && context.image.is_none() {
                // Nowhere at all: one remark says so.
                continue;
            }
            let (message, fix) = match (code, &result.reason) {
                (Code::NotRead, Some(_)) => not_reached(&observation.variable),
                _ => texts(code, observation, path, context),
            };
            add(&mut list, variable, (code, message, fix), place);
        }
    }
    let mut list = joined(list);
    list.sort_by(|a, b| b.severity.cmp(&a.severity).then(a.code.cmp(&b.code)));
    list
}

/// A finding, and the variable that its message names.
struct Entry {
    finding: Finding,
    variable: Option<String>,
}

/// Where a variable's name stood in a message.
const NAME: &str = "\0";

/// What happened to a whole path.
fn about_path(result: &PathResult) -> Option<(Code, String, String)> {
    match (result.status, &result.reason) {
        (Status::Ran, Some(complaint)) if !result.observations.iter().any(is_refused) => {
            let message = format!("NCCL's own call failed, so it may have read less: {complaint}");
            Some((Code::NcclCallFailed, message, CALL_FAILED.into()))
        }
        (Status::Failed, Some(reason)) => {
            let fix = "start it by hand the same way and read what it prints".into();
            Some((Code::PathFailed, reason.clone(), fix))
        }
        _ => None,
    }
}

fn add(
    list: &mut Vec<Entry>,
    variable: Option<&str>,
    (code, message, fix): (Code, String, String),
    place: String,
) {
    let same = |entry: &&mut Entry| {
        let known = &entry.finding;
        known.code == code && known.message == message && known.fix == fix
    };
    match list.iter_mut().find(same) {
        Some(entry) if entry.finding.places.contains(&place) => {}
        Some(entry) => entry.finding.places.push(place),
        None => list.push(Entry {
            finding: Finding::new(code, message, &fix, vec![place]),
            variable: variable.map(Into::into),
        }),
    }
}

/// Makes one finding of those that differ only in the variable that they name.
fn joined(list: Vec<Entry>) -> Vec<Finding> {
    let mut all: Vec<(Finding, Vec<String>)> = Vec::new();
    for Entry { mut finding, variable } in list {
        let named = variable.filter(|name| finding.message.contains(&**name));
        if let Some(name) = &named {
            finding.message = finding.message.replacen(&**name, NAME, 1);
        }
        match all.iter_mut().find(|(known, _)| *known == finding && named.is_some()) {
            Some((_, names)) => names.extend(named),
            None => all.push((finding, named.into_iter().collect())),
        }
    }
    let name_them = |(mut finding, names): (Finding, Vec<String>)| {
        if !names.is_empty() {
            finding.message = finding.message.replacen(NAME, &names.join(", "), 1);
        }
        finding
    };
    all.into_iter().map(name_them).collect()
}

/// What NCCL made of a value that it took.
fn about_effect(o: &Observation) -> Option<(Code, String, String)> {
    let (name, value) = (&o.variable, short(&o.expected));
    match o.effect.as_ref()? {
        // ND0110 says it.
        _ if o.verdict == Verdict::ParsedDifferently => None,
        Effect::Known { in_force, outcome: Some(Outcome::Adjusted) } => Some((
            Code::AdjustedByNccl,
            format!("NCCL took {name}={value}, and works with {in_force}"),
            effect::rule(name, in_force.is_nothing()).into(),
        )),
        Effect::Unreadable { unreadable } if is_refused(o) => Some((
            Code::RefusedByNccl,
            format!("NCCL makes no communicator with {name}={value}: {unreadable}"),
            "write names that this version knows, with commas and without spaces: \
             docs/findings.md has them"
                .into(),
        )),
        _ => None,
    }
}

/// The value is one that NCCL refuses, and NCCL read it and made no
/// communicator.
fn is_refused(o: &Observation) -> bool {
    let value = o.expected.value().unwrap_or_default();
    matches!(o.effect, Some(Effect::Unreadable { .. }))
        && o.read == o.expected
        && effect::is_refused(&o.variable, value)
}

/// The beginning of a value.
fn short(value: &Seen) -> String {
    String::from_utf8_lossy(value.value().unwrap_or_default()).chars().take(40).collect()
}

/// Cause and cure of one observation.
fn texts(
    code: Code,
    o: &Observation,
    path: Option<&LaunchPath>,
    context: &Context,
) -> (String, String) {
    let name = &o.variable;
    if let Some(cut) = cut_short(o) {
        return cut;
    }
    match code {
        Code::ParsedDifferently => parsed_differently(o),
        Code::UnknownVariable => unknown(name, context.image),
        Code::NotRead => not_read(name, context),
        Code::NcclNotChecked => (
            format!("what NCCL latched was not checked: {}", why_not_latched(o)),
            "use {probe} where this program and the library can be reached".into(),
        ),
        Code::CannotTell => (format!("{name}: {}", why_unreadable(o)), CANNOT_TELL.into()),
        Code::LiveOnly => live_only(o, path),
        Code::ForeignValue => foreign(o),
        Code::NeverDelivered | Code::Overwritten if o.set_in == Place::Site && runs_site(path) => {
            (NOT_RUN.into(), NOT_RUN_FIX.into())
        }
        Code::SetAfterLatched => (
            "the value was set after NCCL had read and cached the variable".into(),
            cure(path, "set it before the first NCCL call of the process"),
        ),
        _ => (
            cause(path, "the launcher did not hand on this value"),
            cure(path, "give the variable to the launcher explicitly"),
        ),
    }
}

/// A variable that is in force, and that NCCL did not ask for.
fn not_read(name: &str, context: &Context) -> (String, String) {
    if !name.starts_with("NCCL_") {
        return (
            format!("{name} was delivered; whether NCCL uses it cannot be told from its name"),
            "NCCL's own variables begin with NCCL_".into(),
        );
    }
    if context.communicator {
        return (
            format!("{name} was delivered, but NCCL did not read it to make a communicator"),
            "NCCL reads it later, or only on other machines: check a running job".into(),
        );
    }
    if context.no_communicator {
        return (
            "delivered, but not read: no communicator was made, where NCCL reads it".into(),
            "see ND0123".into(),
        );
    }
    (
        format!("{name} was delivered, but ncclGetUniqueId does not read it"),
        "NCCL reads it later, such as at communicator init (--light makes no communicator): \
         check a running job"
            .into(),
    )
}

/// A variable that NCCL would have read after its call had failed.
fn not_reached(name: &str) -> (String, String) {
    (
        format!("{name} was delivered, but NCCL's call failed before it was read"),
        "see ND0117 or ND0122".into(),
    )
}

/// A conf file's value of which only a beginning arrived.
fn cut_short(o: &Observation) -> Option<(String, String)> {
    let (live, expected) = (o.live.value()?, o.expected.value()?);
    let cut = o.set_in == Place::Conf && live.len() < expected.len() && expected.starts_with(live);
    (cut && !live.is_empty()).then(|| {
        let (kept, all) = (live.len(), expected.len());
        (
            format!("only the first {kept} of {all} bytes of {} arrived", o.variable),
            "shorten the value; NCCL cuts a line of a conf file at 1023 bytes".into(),
        )
    })
}

/// A value that no place of the test set.
fn foreign(o: &Observation) -> (String, String) {
    (
        format!("{} is live with a value that no place of this test set", o.variable),
        "look for it in the launcher itself, nccl.conf files, profiles, site files and in what the \
         framework itself sets"
            .into(),
    )
}

const CALL_FAILED: &str = "run that way with NCCL_DEBUG=INFO and look for NCCL's first WARN line";

const CANNOT_TELL: &str =
    "run as the same user as the process or as root, and see the reason given";

fn cause(path: Option<&LaunchPath>, otherwise: &str) -> String {
    path.map_or(otherwise, |p| p.cause).to_owned()
}

fn cure(path: Option<&LaunchPath>, otherwise: &str) -> String {
    path.map_or(otherwise, |p| p.cure).to_owned()
}

/// Not a fault, but a trap for whoever looks at /proc/PID/environ.
fn live_only(o: &Observation, path: Option<&LaunchPath>) -> (String, String) {
    let message = match o.set_in {
        Place::Conf => {
            "NCCL itself set the value from its conf file inside the process; neither \
             /proc/PID/environ nor os.environ shows it"
        }
        Place::Site => "a site file set the value inside the process, so its exec block lacks it",
        Place::Child => "the process set the value itself, so its exec block lacks it",
        _ => return (cause(path, LIVE_ONLY), cure(path, LIVE_ONLY_FIX)),
    };
    (message.into(), LIVE_ONLY_FIX.into())
}

/// A path on which Python should run the site file.
fn runs_site(path: Option<&LaunchPath>) -> bool {
    path.is_some_and(|p| p.cause == RUNS_AT_START[0])
}

const NOT_RUN: &str = "this Python did not run the site file: one of the same name comes first \
    on sys.path (Debian's own in /usr/lib/python3.x), or site files are switched off";
const NOT_RUN_FIX: &str = "use a .pth file in site-packages, or set the variable before Python \
    starts; python3 -c 'import sitecustomize; print(sitecustomize)' shows which one wins";

const LIVE_ONLY: &str = "the value is live, but exec did not deliver it";
const LIVE_ONLY_FIX: &str =
    "nothing, if it was set before NCCL's first call; judge such a process by its live environ";

fn parsed_differently(o: &Observation) -> (String, String) {
    let name = &o.variable;
    let text = short(&o.expected);
    let parsed = parse_like_nccl(o.expected.value().unwrap_or_default());
    let message = match (parsed, &o.latched) {
        (Parsed::Overflow, _) => format!("{name}={text} is out of range: NCCL takes its default"),
        (Parsed::Octal(n), _) => {
            format!("NCCL takes {name}={text} for {n}: a leading zero means octal")
        }
        (Parsed::Prefix(n), Latched::NotRead) => {
            format!("NCCL will parse {name}={text} to {n} when it reads it: it drops the rest")
        }
        (Parsed::Prefix(n) | Parsed::Whole(n), _) => {
            format!("NCCL parsed {name}={text} to {n}: it drops the rest")
        }
        (Parsed::Empty, _) => format!("NCCL takes the empty {name} for unset"),
    };
    (message, "write a plain integer, such as 8388608 for 8M".into())
}

fn unknown(name: &str, image: Option<&Image>) -> (String, String) {
    let fix = match image.and_then(|i| i.suggest(name)) {
        Some(near) => format!("did you mean {near}?"),
        None => "check the name against the documentation of this NCCL version".into(),
    };
    (format!("this NCCL knows no variable {name}"), fix)
}

fn why_not_latched(o: &Observation) -> String {
    match &o.latched {
        Latched::Unreadable(why) => why.to_string(),
        _ => "nobody looked".into(),
    }
}

fn why_unreadable(o: &Observation) -> String {
    for seen in [&o.live, &o.exec] {
        if let Seen::Unreadable(why) = seen {
            return why.to_string();
        }
    }
    "a view is missing".into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_with_the_same_fate_are_one_finding() {
        let entry = |variable: Option<&str>, message: &str, place: &str| Entry {
            finding: Finding::new(Code::NotRead, message.into(), "wait", vec![place.into()]),
            variable: variable.map(Into::into),
        };
        let list = vec![
            entry(Some("NCCL_A"), "NCCL_A was not read", "nohup/shell"),
            entry(Some("NCCL_B"), "NCCL_B was not read", "nohup/shell"),
            entry(Some("NCCL_C"), "NCCL_C was not read", "setsid/shell"),
            entry(Some("NCCL_D"), "it names nobody", "nohup/shell"),
            entry(None, "a whole path", "nohup"),
        ];
        let texts: Vec<String> = joined(list).into_iter().map(|one| one.message).collect();
        let expected = [
            "NCCL_A, NCCL_B was not read",
            "NCCL_C was not read",
            "it names nobody",
            "a whole path",
        ];
        assert_eq!(texts, expected);
    }
}
