//! Puts a probe's command line where `{probe}`, `{probe-sh}` or `{probe-py}`
//! stands in a launcher's, quoted as the launcher will need it.

use super::frame;
use crate::probes::native::PROBE;
use crate::probes::wire::Fields;
use anyhow::Result;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// Launchers that hand their words to a shell on the other side, so that a
/// probe's words need one more level of quoting.
const THROUGH_A_SHELL: [&str; 6] = ["ssh", "rsh", "autossh", "sshpass", "pdsh", "clush"];

/// The forms of a probe that a command line can ask for.
#[derive(Clone, Copy)]
enum Form {
    Native,
    Sh,
    Python,
}

const FORMS: [(&str, Form); 3] =
    [("{probe}", Form::Native), ("{probe-sh}", Form::Sh), ("{probe-py}", Form::Python)];

/// What a probe's command line is made of.
pub(super) struct Probe<'a> {
    /// This program.
    pub exe: &'a Path,
    /// What the native probe has to know.
    pub spec: &'a Fields,
    /// What its frames are marked with.
    pub token: &'a str,
    /// The watched variables.
    pub names: Vec<&'a str>,
}

/// Whether a command line has a place for the probe.
pub(super) fn is_in(argv: &[OsString]) -> bool {
    let holds = |a: &OsString, mark: &str| memchr::memmem::find(a.as_bytes(), mark.as_bytes());
    argv.iter().any(|a| FORMS.iter().any(|(mark, _)| holds(a, mark).is_some()))
}

/// The command line with the probe in its place. An argument that is only the
/// mark becomes several arguments; inside a longer one, behind `-c` (`sh -c`,
/// `su -c`) and behind a remote shell the probe's words are quoted.
///
/// # Errors
/// A word cannot be quoted for a shell.
pub(super) fn replace(argv: &[OsString], probe: &Probe) -> Result<Vec<OsString>> {
    let mut out: Vec<OsString> = Vec::new();
    let mut remote = false;
    let mut before: &OsStr = OsStr::new("");
    for argument in argv {
        match FORMS.iter().find(|(mark, _)| argument == *mark) {
            Some(&(_, form)) if remote || takes_a_line(before) => {
                out.push(OsString::from_vec(probe.line(form)?));
            }
            Some(&(_, form)) => out.extend(probe.words(form)),
            None => out.push(within(argument, probe)?),
        }
        let name = Path::new(argument).file_name().unwrap_or_default();
        remote |= THROUGH_A_SHELL.iter().any(|shell| name == *shell);
        before = argument;
    }
    Ok(out)
}

/// `-c`, `-lc`, `-xlc`, behind which a shell expects a whole line; not `-exec`.
fn takes_a_line(option: &OsStr) -> bool {
    let letters = option.as_bytes().strip_prefix(b"-").and_then(|rest| rest.strip_suffix(b"c"));
    letters.is_some_and(|rest| rest.len() <= 2 && rest.iter().all(u8::is_ascii_lowercase))
}

fn within(argument: &OsStr, probe: &Probe) -> Result<OsString> {
    let mut bytes = argument.as_bytes().to_vec();
    for (mark, form) in FORMS {
        while let Some(at) = memchr::memmem::find(&bytes, mark.as_bytes()) {
            bytes.splice(at..at + mark.len(), probe.line(form)?);
        }
    }
    Ok(OsString::from_vec(bytes))
}

impl Probe<'_> {
    /// One line for a shell.
    fn line(&self, form: Form) -> Result<Vec<u8>> {
        let words = self.words(form);
        let quoted = words.iter().map(|w| shlex::bytes::try_quote(w.as_bytes()));
        Ok(quoted.collect::<Result<Vec<_>, _>>()?.join(&b' '))
    }

    fn words(&self, form: Form) -> Vec<OsString> {
        match form {
            Form::Native => {
                let hex = frame::hex(&self.spec.encode());
                vec![self.exe.into(), PROBE.into(), format!("={hex}").into()]
            }
            Form::Sh => {
                let script = include_str!("../../probes/remote/probe.sh");
                let script = script.replacen("TOKEN", self.token, 1);
                let script = script.replacen("NAMES", &self.names.join("|"), 1);
                vec!["sh".into(), "-c".into(), script.into()]
            }
            Form::Python => {
                let script = include_str!("../../probes/remote/probe.py");
                let script = script.replacen("@TOKEN@", self.token, 1);
                let script = script.replacen("@NAMES@", &self.names.join(","), 1);
                vec!["python3".into(), "-c".into(), script.into()]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replaced(argv: &[&str]) -> Vec<String> {
        let spec = Fields::default();
        let exe = Path::new("/my exe");
        let probe = Probe { exe, spec: &spec, token: "t", names: vec!["A"] };
        let argv: Vec<OsString> = argv.iter().map(Into::into).collect();
        assert!(is_in(&argv));
        let out = replace(&argv, &probe).expect("plain words can be quoted");
        out.into_iter().map(|w| w.into_string().expect("UTF-8")).collect()
    }

    #[test]
    fn the_mark_alone_becomes_several_words() {
        assert_eq!(replaced(&["srun", "-n2", "{probe}"])[2..], ["/my exe", PROBE, "="]);
        assert_eq!(
            replaced(&["find", ".", "-exec", "{probe}", ";"])[3..],
            ["/my exe", PROBE, "=", ";"]
        );
    }

    #[test]
    fn a_shell_gets_one_line() {
        for (before, argv) in [
            (2, &["sh", "-c", "{probe}"][..]),
            (2, &["bash", "-lc", "{probe}"]),
            (2, &["ssh", "host", "{probe}"]),
            (4, &["timeout", "5", "/usr/bin/ssh", "host", "{probe}"]),
        ] {
            let out = replaced(argv);
            assert_eq!(out.len(), before + 1, "{out:?}");
            let words = shlex::split(&out[before]).expect("well quoted");
            assert_eq!(words, ["/my exe", PROBE, "="]);
        }
        assert!(replaced(&["sh", "-c", "cd / && {probe}; true"])[2].contains(PROBE));
    }
}
