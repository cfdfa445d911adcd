//! Arguments that several commands take, checked. Everything wrong is a usage
//! error that names the argument.

use crate::exit::UsageError;
use crate::nccl::find::Choice;
use crate::nccl::wheel::Wheel;
use crate::render;
use anyhow::Result;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

/// The longest `--timeout`: a day.
const LONGEST: Duration = Duration::from_secs(86_400);

/// Which library an option such as `--nccl` names.
///
/// # Errors
/// A [`UsageError`].
pub fn library(option: &str, text: &str) -> Result<Choice> {
    let choice = Choice::parse(OsStr::new(text))
        .map_err(|error| UsageError(format!("{option} {text}: {error}")))?;
    if text.parse::<Wheel>().is_ok() && !Path::new(text).exists() {
        let text = format!("{option} {text}: no such file; did you mean pip:{text}?");
        return Err(UsageError(text).into());
    }
    Ok(choice)
}

/// `NAME=VALUE`, where a value may be any bytes.
///
/// # Errors
/// A [`UsageError`].
pub fn variable(option: &str, text: &OsStr) -> Result<(String, Vec<u8>)> {
    let bytes = text.as_bytes();
    let shown = render::escape(&text.to_string_lossy().chars().take(60).collect::<String>());
    let Some(at) = bytes.iter().position(|&b| b == b'=') else {
        return Err(UsageError(format!("{option} {shown}: write NAME=VALUE")).into());
    };
    let name = String::from_utf8_lossy(&bytes[..at]).into_owned();
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) || !name.chars().all(plain)
    {
        let text = format!("{option} {shown}: a variable's name has only letters, digits and _");
        return Err(UsageError(text).into());
    }
    Ok((name, bytes[at + 1..].to_vec()))
}

/// Each `NAME=VALUE` of an option, and no name twice.
///
/// # Errors
/// A [`UsageError`].
pub fn variables(option: &str, texts: &[OsString]) -> Result<Vec<(String, Vec<u8>)>> {
    let mut all: Vec<(String, Vec<u8>)> = Vec::new();
    for text in texts {
        let (name, value) = variable(option, text)?;
        if all.iter().any(|(known, _)| *known == name) {
            return Err(UsageError(format!("{option} {name}: given twice")).into());
        }
        all.push((name, value));
    }
    Ok(all)
}

/// What `--fail-on` names. `meant` says what a word may stand for in this
/// command, which `known` tells in words: `code (ND0101) or any`.
///
/// # Errors
/// A [`UsageError`].
pub fn fail_on<T>(
    words: &[String],
    known: &str,
    meant: impl Fn(&str) -> Option<T>,
) -> Result<Vec<T>> {
    let parse = |word: &String| {
        meant(word).ok_or_else(|| {
            let text = format!("--fail-on {word:?} is no {known}; docs/findings.md lists them");
            UsageError(text).into()
        })
    };
    words.iter().map(parse).collect()
}

/// A time in seconds.
///
/// # Errors
/// A [`UsageError`].
pub fn timeout(seconds: f64) -> Result<Duration> {
    match Duration::try_from_secs_f64(seconds) {
        Ok(limit) if !limit.is_zero() && limit <= LONGEST => Ok(limit),
        _ => {
            let text = format!("--timeout {seconds}: write seconds, above 0, up to 86400");
            Err(UsageError(text).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_variable_is_given_twice() {
        let given = |texts: &[&str]| {
            let texts: Vec<OsString> = texts.iter().map(Into::into).collect();
            variables("-e", &texts).map_err(|error| error.to_string())
        };
        let both = vec![("B".to_owned(), b"1".to_vec()), ("A".to_owned(), Vec::new())];
        assert_eq!(given(&["B=1", "A="]), Ok(both));
        assert_eq!(given(&["A=1", "B=1", "A=2"]), Err("-e A: given twice".into()));
    }

    #[test]
    fn a_word_of_fail_on_that_means_nothing_is_named() {
        let parse = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            fail_on(&words, "number", |word| word.parse::<u8>().ok())
        };
        assert_eq!(parse(&["1", "2"]).expect("numbers"), [1, 2]);
        let error = parse(&["1", "x"]).expect_err("no number").to_string();
        assert_eq!(error, "--fail-on \"x\" is no number; docs/findings.md lists them");
    }
}
