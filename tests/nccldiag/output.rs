//! What comes out: the schema, the other formats, the table in a pipe and on a
//! terminal, and exit codes.

use crate::harness::{Ended, OnTerminal, Sandbox, Started, finish, main_library};
use serde_json::{Map, Value, json};
use std::ffi::OsString;

/// A short run that has a delivered, a lost and a cut value.
fn short(sandbox: &Sandbox, more: &[&str]) -> Ended {
    sandbox.check(arguments(more))
}

fn arguments(more: &[&str]) -> Vec<OsString> {
    let library = main_library().map_or("auto".into(), std::path::PathBuf::into_os_string);
    let mut all: Vec<OsString> = ["--path", "fork-exec,env-i", "--nccl"].map(Into::into).into();
    all.push(library);
    all.extend(more.iter().map(Into::into));
    all
}

fn keys(object: &Map<String, Value>) -> Vec<&str> {
    object.keys().map(String::as_str).collect()
}

fn object(value: &Value) -> &Map<String, Value> {
    value.as_object().unwrap_or_else(|| panic!("no object: {value}"))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("no list: {value}"))
}

#[test]
fn the_json_has_exactly_the_documented_fields() {
    let Some(library) = main_library() else { return };
    let ended = short(&Sandbox::new(), &["--format", "json"]);
    let json: Value = serde_json::from_slice(&ended.exits(0).stdout).expect("JSON");
    // serde_json sorts the keys of a Value.
    assert_eq!(keys(object(&json)), ["effect_source", "findings", "nccl", "paths", "schema"]);
    assert_eq!(keys(object(&json["effect_source"])), ["detail", "provenance"]);
    assert_eq!(json["schema"], "nccldiag/env-check/1");
    assert_eq!(json["nccl"], json!({"path": library, "version": "2.27.7", "symbols": true}));
    let paths = list(&json["paths"]);
    assert_eq!(paths.len(), 2);
    for path in paths {
        assert_eq!(keys(object(path)), ["family", "id", "observations", "reason", "status"]);
        assert_eq!(path["status"], "ran");
        assert_eq!(path["reason"], Value::Null);
        for observation in list(&path["observations"]) {
            let expected = [
                "effect", "exec", "expected", "finding", "latched", "live", "process", "read",
                "set_in", "variable", "verdict",
            ];
            assert_eq!(keys(object(observation)), expected);
        }
    }
    for finding in list(&json["findings"]) {
        assert_eq!(keys(object(finding)), ["code", "fix", "message", "severity", "where"]);
        assert!(list(&finding["where"]).iter().all(Value::is_string));
    }
}

#[test]
fn json_values_have_one_form_for_each_state() {
    if main_library().is_none() {
        return;
    }
    let json = short(&Sandbox::new(), &["--format", "json"]);
    let json: Value = serde_json::from_slice(&json.stdout).expect("JSON");
    let delivered = &json["paths"][0]["observations"];
    let expected = json!({
        "variable": "NCCL_BUFFSIZE", "set_in": "shell", "process": 0, "expected": "1048576",
        "exec": "1048576", "live": "1048576", "latched": {"value": 1_048_576}, "read": "1048576",
        "effect": {"in_force": 1_048_576, "outcome": "as_set"}, "verdict": "delivered",
        "finding": null,
    });
    assert_eq!(delivered[2], expected);
    assert_eq!(delivered[0]["latched"], "not_cached");
    assert_eq!(delivered[0]["effect"], json!({"in_force": ["Ring"], "outcome": "as_set"}));
    assert_eq!(delivered[5]["effect"], Value::Null);
    let lost = &json["paths"][1]["observations"][0];
    assert_eq!(lost["effect"]["outcome"], "not_taken");
    assert_eq!([&lost["exec"], &lost["live"], &lost["read"]], [&Value::Null; 3]);
    assert_eq!([&lost["verdict"], &lost["finding"]], ["never_delivered", "ND0102"]);
}

#[test]
fn values_that_are_no_text_and_names_that_nccl_does_not_know_have_their_forms() {
    use std::os::unix::ffi::OsStringExt;
    if main_library().is_none() {
        return;
    }
    let mut all = arguments(&["--format", "json", "--light", "-e", "NCCL_NO_SUCH_NAME=1"]);
    all.extend(["-e", "NCCL_ALGO=Ring", "-e", "NCCL_BUFFSIZE=4194304"].map(Into::into));
    all.extend(["-e".into(), OsString::from_vec(b"NCCL_TOPO_FILE=\xff\xfe".to_vec())]);
    let ended = Sandbox::new().check(all);
    let json: Value = serde_json::from_slice(&ended.exits(0).stdout).expect("JSON");
    let seen = |i: usize, field: &str| json["paths"][0]["observations"][i][field].clone();
    assert_eq!(seen(0, "latched"), "no_such_parameter");
    assert_eq!(seen(0, "verdict"), "unknown_variable");
    assert_eq!(seen(1, "latched"), "not_cached");
    assert_eq!(seen(2, "latched"), "not_read");
    assert_eq!(seen(2, "finding"), "ND0111");
    assert_eq!(seen(3, "exec"), json!({"bytes": "//4="}));
    assert!(object(&seen(3, "read")).contains_key("unreadable"));
}

#[test]
fn a_misspelt_name_gets_a_suggestion() {
    if main_library().is_none() {
        return;
    }
    let ended = short(&Sandbox::new(), &["-e", "NCCL_BUFSIZE=1"]);
    assert!(ended.out().contains("NCCL_BUFFSIZE"), "{}", ended.out());
}

#[test]
fn csv_has_a_row_for_each_observation() {
    let text = short(&Sandbox::new(), &["--format", "csv"]).exits(0).out();
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let header: Vec<String> =
        reader.headers().expect("a header").iter().map(String::from).collect();
    assert_eq!(header[0], "path");
    let rows: Vec<csv::StringRecord> = reader.records().collect::<Result<_, _>>().expect("rows");
    // Seven variables on three launches.
    assert_eq!(rows.len(), 21);
    assert!(rows.iter().all(|row| row.len() == header.len()));
}

#[test]
fn markdown_has_one_table_with_equal_rows() {
    let text = short(&Sandbox::new(), &["--format", "markdown"]).exits(0).out();
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with('|')).collect();
    assert_eq!(rows.len(), 2 + 21, "{text}");
    let bars = |row: &str| row.replace("\\|", "").matches('|').count();
    assert!(rows.iter().all(|row| bars(row) == bars(rows[0])), "{text}");
}

#[test]
fn output_goes_to_a_file() {
    let sandbox = Sandbox::new();
    let file = sandbox.path().join("result.json");
    let name = file.to_str().expect("plain");
    let ended = short(&sandbox, &["--format", "json", "--output", name]);
    assert_eq!(ended.exits(0).out(), "");
    let text = std::fs::read(&file).expect("the result");
    assert!(serde_json::from_slice::<Value>(&text).is_ok());
}

#[test]
fn an_output_file_that_cannot_be_written_is_named() {
    let sandbox = Sandbox::new();
    let ended = short(&sandbox, &["--output", "/proc/no/such/file"]);
    ended.exits(3).complains(&["/proc/no/such/file"]);
    sandbox.assert_nothing_left();
}

#[test]
fn the_table_in_a_pipe_is_plain_and_fits_80_columns() {
    let mut all = arguments(&[]);
    all.drain(..2);
    let text = Sandbox::new().check(all).exits(0).out();
    for line in text.lines() {
        // A path that no folding can shorten may stand alone.
        let breakable = line.trim().contains(' ') && !line.contains("libnccl.so.2");
        assert!(!breakable || line.chars().count() <= 80, "{line}");
    }
    assert!(!text.contains('\x1b'), "escape codes in a pipe");
    let symbols = text.chars().filter(|c| !c.is_ascii()).collect::<String>();
    assert_eq!(symbols, "", "only plain words in a pipe");
    assert!(text.contains(" paths: ") && text.contains(" observations: "), "no counts:\n{text}");
}

#[test]
fn the_table_on_a_terminal_has_symbols_and_colour() {
    let sandbox = Sandbox::new();
    let (status, text) = OnTerminal::new(&mut sandbox.env_check(arguments(&[]))).end();
    assert!(status.success(), "{text}");
    assert!(text.contains("\x1b["), "{text}");
    assert!(text.chars().any(|c| matches!(c, '✓' | '✔' | '●' | '✗' | '✘')), "{text}");
    sandbox.assert_nothing_left();
}

#[test]
fn no_color_is_respected_on_a_terminal() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.env_check(arguments(&[]));
    let (_, text) = OnTerminal::new(command.env("NO_COLOR", "1")).end();
    let table = &text[text.find("exec block").expect("the legend")..];
    assert!(!table.contains("\x1b["), "{table}");
}

#[test]
fn fail_on_takes_codes_names_verdicts_and_any() {
    let sandbox = Sandbox::new();
    for (word, code) in [
        ("ND0102", 1),
        ("nd0102", 1),
        ("never-delivered", 1),
        ("never_delivered", 1),
        ("any", 1),
        ("ND0110", 0),
        ("mapping_only", 0),
        ("ND0110,never_delivered", 1),
        ("ND9999", 2),
        ("everything", 2),
    ] {
        let ended = short(&sandbox, &["--fail-on", word]);
        assert_eq!(ended.status.code(), Some(code), "--fail-on {word}: {}", ended.err());
        assert_eq!(ended.out().is_empty(), code == 2, "--fail-on {word}");
    }
}

#[test]
fn a_value_that_nccl_cuts_is_an_error_that_fail_on_sees() {
    if main_library().is_none() {
        return;
    }
    let sandbox = Sandbox::new();
    let cut = ["-e", "NCCL_GDRCOPY_ENABLE=8M", "--fail-on", "parsed-differently"];
    let ended = short(&sandbox, &cut);
    assert!(ended.exits(1).out().contains("ND0110"));
}

#[test]
fn unknown_words_exit_2_with_a_way_on() {
    let sandbox = Sandbox::new();
    for (args, hint) in [
        (["--path", "fork-exce"], "fork-exec"),
        (["--path", "py-spwan"], "py-spawn"),
        (["--family", "pyton"], "python"),
        (["--format", "yaml"], "markdown"),
        (["--timeout", "0"], "seconds"),
        (["--fail-no", "any"], "--fail-on"),
    ] {
        let ended = sandbox.check(args);
        ended.exits(2).complains(&[args[1], hint]);
        assert_eq!(ended.out(), "");
    }
    assert_eq!(sandbox.leftovers().len(), 0);
}

#[test]
fn families_choose_paths() {
    let sandbox = Sandbox::new();
    let listed = sandbox.check(["--list", "--family", "conf,site"]).exits(0).out();
    let family = |line: &str| line.split_whitespace().nth(1).map(str::to_owned);
    let mut families: Vec<String> = listed.lines().filter_map(family).collect();
    families.dedup();
    assert_eq!(families, ["site", "conf"]);
}

#[test]
fn a_reader_that_closes_the_pipe_is_no_panic() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.prepared("bash");
    let line = r#""$@" | head -n 1; exit "${PIPESTATUS[0]}""#;
    command.args(["-c", line, "bash", crate::harness::PROGRAM, "env-check"]).args(arguments(&[]));
    let ended = finish(&mut command);
    ended.exits(0).complains(&[]);
    assert_eq!(ended.out().lines().count(), 1);
    sandbox.assert_nothing_left();
}

#[test]
fn hostile_values_reach_no_terminal_raw() {
    let sandbox = Sandbox::new();
    let hostile = "NCCL_TOPO_FILE=\x1b]0;owned\x07\x1b[2J\u{9b}31m\u{202e}x\r";
    for format in ["table", "csv", "markdown"] {
        let mut command = sandbox.env_check(arguments(&["--format", format, "-e", hostile]));
        command.env("NO_COLOR", "1").env("NCCL_\x1b[2J", "1");
        let ended = Started::new(&mut command).end();
        for text in [ended.exits(0).out(), ended.err()] {
            let control = |c: &char| c.is_control() && *c != '\n';
            let bad: Vec<char> = text.chars().filter(control).collect();
            assert!(bad.is_empty() && !text.contains('\u{202e}'), "{format}: {bad:?} in {text:?}");
        }
    }
}
