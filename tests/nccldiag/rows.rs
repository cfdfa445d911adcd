//! What each launch path delivers, held against what NCCL itself latched and
//! what is then in force in a communicator: one full run for every library of
//! this test run.

use crate::harness::{Sandbox, finish, has_tools, library, skip, versions};
use nccldiag::model::{
    Effect, EnvCheck, Latched, Observation, PathResult, Provenance, Seen, Status,
};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// The watched variables, and what the cache of each holds when nobody set it;
/// `None` where NCCL caches no integer.
const NAMES: [(&str, Option<i64>); 7] = [
    ("NCCL_ALGO", None),
    ("NCCL_PROTO", None),
    ("NCCL_BUFFSIZE", Some(-2)),
    ("NCCL_MIN_NCHANNELS", Some(-2)),
    ("NCCL_NTHREADS", Some(-2)),
    ("NCCL_GDRCOPY_ENABLE", Some(0)),
    ("NCCL_SOCKET_IFNAME", None),
];

/// What each place sets, in the order of `NAMES`.
const VALUES: [(&str, [&str; 7]); 8] = [
    ("shell", ["Ring", "LL", "1048576", "10", "96", "100001", "lo,c10"]),
    ("parent", ["ring", "LL128", "1572864", "11", "128", "200001", "lo,c20"]),
    ("child", ["Tree", "Simple", "2097152", "12", "160", "300001", "lo,c30"]),
    ("site", ["tree", "simple", "2621440", "13", "192", "400001", "lo,c40"]),
    ("site2", ["RING", "ll", "3145728", "14", "224", "400002", "lo,c41"]),
    ("conf", ["TREE", "ll128", "3670016", "15", "288", "500001", "lo,c50"]),
    ("launcher", ["tREE", "SIMPLE", "4718592", "16", "320", "600001", "lo,c60"]),
    ("launcher2", ["rING", "Ll", "5242880", "17", "352", "600002", "lo,c61"]),
];

/// How NCCL spells algorithms and protocols.
const SPELLED: [&str; 5] = ["Ring", "Tree", "LL", "LL128", "Simple"];

/// Path, process, place, E, L, N, verdict, condition. `yes` is the value of
/// the place itself, `no` is absent (for a cached integer: its default), a
/// place's name is the value of that place. What NCCL took is also what is in
/// force. The condition is about NCCL's version or about the Python that ran.
const ROWS: &str = "
    fork-exec                  0 shell    yes      yes      yes      delivered
    fork-exec                  1 parent   yes      yes      yes      delivered
    fork-only                  0 shell    yes      yes      yes      delivered
    fork-only                  1 parent   no       yes      yes      live_only
    vfork-exec                 0 shell    yes      yes      yes      delivered
    vfork-exec                 1 parent   yes      yes      yes      delivered
    posix-spawn                0 shell    yes      yes      yes      delivered
    posix-spawn                1 parent   yes      yes      yes      delivered
    posix-spawn-own-env        0 shell    no       no       no       never_delivered
    posix-spawn-own-env        1 parent   no       no       no       never_delivered
    posix-spawn-own-env        2 launcher yes      yes      yes      delivered
    exec-own-env               0 shell    no       no       no       never_delivered
    exec-own-env               1 parent   no       no       no       never_delivered
    exec-own-env               2 launcher yes      yes      yes      delivered
    exec-own-env-duplicate     0 launcher yes      yes      yes      delivered
    exec-own-env-duplicate     0 launcher2 launcher launcher launcher overwritten
    clearenv-exec              0 shell    no       no       no       never_delivered
    clearenv-exec              1 parent   no       no       no       never_delivered
    system                     0 shell    yes      yes      yes      delivered
    system                     1 parent   yes      yes      yes      delivered
    popen                      0 shell    yes      yes      yes      delivered
    popen                      1 parent   yes      yes      yes      delivered
    sh-c                       0 shell    yes      yes      yes      delivered
    bash-c                     0 shell    yes      yes      yes      delivered
    bash-lc                    0 shell    yes      yes      yes      delivered
    env-i                      0 shell    no       no       no       never_delivered
    env-u                      0 shell    no       no       no       never_delivered
    unexported                 0 shell    no       no       no       never_delivered
    xargs                      0 shell    yes      yes      yes      delivered
    make-plain                 0 shell    yes      yes      yes      delivered
    make-plain                 1 launcher no       no       no       never_delivered
    make-plain                 2 shell    launcher launcher launcher overwritten
    make-plain                 2 launcher yes      yes      yes      delivered
    make-export                0 shell    yes      yes      yes      delivered
    make-export                1 launcher yes      yes      yes      delivered
    make-export                2 shell    launcher launcher launcher overwritten
    make-export                2 launcher yes      yes      yes      delivered
    nohup                      0 shell    yes      yes      yes      delivered
    setsid                     0 shell    yes      yes      yes      delivered
    timeout                    0 shell    yes      yes      yes      delivered
    py-subprocess              0 shell    yes      yes      yes      delivered
    py-subprocess              1 parent   yes      yes      yes      delivered
    py-subprocess-empty-env    0 shell    no       no       no       never_delivered
    py-subprocess-empty-env    1 parent   no       no       no       never_delivered
    py-subprocess-environ-copy 0 shell    yes      yes      yes      delivered
    py-subprocess-environ-copy 1 parent   yes      yes      yes      delivered
    py-os-system               0 shell    yes      yes      yes      delivered
    py-os-system               1 parent   yes      yes      yes      delivered
    py-fork                    0 shell    yes      yes      yes      delivered
    py-fork                    1 parent   no       yes      yes      live_only
    py-spawn                   0 shell    yes      yes      yes      delivered
    py-spawn                   1 parent   yes      yes      yes      delivered
    py-forkserver              0 shell    yes      yes      yes      delivered
    py-forkserver              1 parent   yes      yes      yes      delivered
    py-forkserver-late         0 shell    yes      yes      yes      delivered
    py-forkserver-late         1 parent   no       no       no       never_delivered
    py-pool                    0 shell    yes      yes      yes      delivered
    py-pool                    1 parent   no       no       no       never_delivered
    py-target-early            0 child    no       yes      yes      live_only
    py-target-early            1 parent   yes      child    child    changed_after_exec
    py-target-early            1 child    parent   yes      yes      live_only
    py-target-late             0 child    no       yes      no       set_after_latched
    py-target-late             1 parent   yes      child    yes      changed_after_exec
    py-target-late             1 child    parent   yes      parent   set_after_latched
    py-main-toplevel           0 parent   yes      child    child    changed_after_exec
    py-main-toplevel           0 child    parent   yes      yes      live_only
    py-environ-replaced        0 shell    yes      yes      yes      delivered
    py-environ-replaced        1 parent   no       no       no       mapping_only
    py-ctypes-setenv           0 shell    yes      yes      yes      delivered
    py-ctypes-setenv           1 parent   yes      yes      yes      delivered
    py-ctypes-setenv-copy      0 parent   no       no       no       never_delivered
    py-setproctitle            0 shell    no       yes      yes      exec_overwritten
    py-site-pythonpath         0 site     no       yes      yes      live_only
    py-site-pythonpath         1 shell    yes      site     site     overwritten
    py-site-pythonpath         1 site     shell    yes      yes      live_only
    py-site-venv               0 site     no       yes      yes      live_only         no-site-of-its-own
    py-site-venv               1 shell    yes      site     site     overwritten       no-site-of-its-own
    py-site-venv               1 site     shell    yes      yes      live_only         no-site-of-its-own
    py-site-venv-isolated      0 site     no       yes      yes      live_only         no-site-of-its-own
    py-site-venv               0 site     no       no       no       never_delivered   site-of-its-own
    py-site-venv               1 shell    yes      yes      yes      delivered         site-of-its-own
    py-site-venv               1 site     shell    shell    shell    overwritten       site-of-its-own
    py-site-venv-isolated      0 site     no       no       no       never_delivered   site-of-its-own
    py-site-isolated           0 site     no       no       no       never_delivered
    py-site-S                  0 site     no       no       no       never_delivered
    py-site-cwd                0 site     no       no       no       never_delivered
    py-site-shadowed           0 site     no       yes      yes      live_only
    py-site-shadowed           0 site2    no       site     site     overwritten
    py-site-child              0 site     yes      yes      yes      delivered
    py-pth                     0 site     no       yes      yes      live_only
    py-usercustomize           0 site     no       site2    site2    overwritten       base-python
    py-usercustomize           0 site2    no       yes      yes      live_only         base-python
    py-usercustomize           0 site     no       yes      yes      live_only         venv
    py-usercustomize           0 site2    no       site     site     overwritten       venv
    nccl-conf-file             0 conf     no       no       no       never_delivered   <2.23
    nccl-conf-file             0 conf     no       yes      yes      live_only         >=2.23
    nccl-conf-home             0 conf     no       no       no       never_delivered   <2.30
    nccl-conf-home             0 conf     no       yes      yes      live_only         >=2.30
    nccl-conf-vs-env           0 conf     shell    shell    shell    overwritten
    nccl-conf-vs-env           0 shell    yes      yes      yes      delivered
";

/// The ids that people rely on; `--list` has them all.
const IDS: [&str; 47] = [
    "fork-exec",
    "fork-only",
    "vfork-exec",
    "posix-spawn",
    "posix-spawn-own-env",
    "exec-own-env",
    "clearenv-exec",
    "system",
    "popen",
    "sh-c",
    "bash-c",
    "bash-lc",
    "env-i",
    "env-u",
    "unexported",
    "xargs",
    "make-plain",
    "make-export",
    "nohup",
    "setsid",
    "timeout",
    "py-subprocess",
    "py-subprocess-empty-env",
    "py-subprocess-environ-copy",
    "py-os-system",
    "py-fork",
    "py-spawn",
    "py-forkserver",
    "py-forkserver-late",
    "py-pool",
    "py-target-early",
    "py-target-late",
    "py-main-toplevel",
    "py-environ-replaced",
    "py-ctypes-setenv",
    "py-setproctitle",
    "py-site-pythonpath",
    "py-site-venv",
    "py-site-isolated",
    "py-site-S",
    "py-site-cwd",
    "py-site-shadowed",
    "py-usercustomize",
    "py-pth",
    "nccl-conf-file",
    "nccl-conf-home",
    "nccl-conf-vs-env",
];

/// Whatever a machine may lack.
const TOOLS: [&str; 8] = ["bash", "env", "xargs", "make", "nohup", "setsid", "timeout", "python3"];

#[test]
fn every_known_path_is_listed_and_has_rows_here() {
    let listed = Sandbox::new().check(["--list"]).exits(0).out();
    let listed: BTreeSet<&str> = listed.lines().filter_map(|l| l.split(' ').next()).collect();
    for id in IDS {
        assert!(listed.contains(id), "--list lacks {id}: {listed:?}");
    }
    assert_eq!(listed, rows().map(|row| row.path).collect());
}

#[test]
fn every_path_delivers_what_its_rows_say() {
    if !has_tools(&TOOLS) {
        return;
    }
    for version in versions() {
        let Some(library) = library(&version) else { continue };
        let sandbox = Sandbox::new();
        let mut command = sandbox.env_check(["--format", "json", "--nccl"]);
        let result = finish(command.arg(&library)).exits(0).result();
        assert_eq!(result.paths.len(), rows().map(|r| r.path).collect::<BTreeSet<_>>().len());
        assert_eq!(
            result.effect_source.provenance,
            Provenance::Virtual,
            "{:?}",
            result.effect_source
        );
        compare(&result, &version, Kind::of("python3".as_ref()), &["py-setproctitle"]);
        sandbox.assert_nothing_left();
    }
}

/// These need a module, so they run in a venv, where usercustomize does not.
#[test]
fn a_process_title_and_a_venv_change_what_their_rows_say() {
    let Some(python) = std::env::var_os("NCCLDIAG_TEST_PYTHON") else {
        return skip("NCCLDIAG_TEST_PYTHON names no Python with setproctitle");
    };
    for version in versions() {
        let Some(library) = library(&version) else { continue };
        let sandbox = Sandbox::new();
        let mut command = sandbox.program();
        command.args(["env-check", "--path", "py-setproctitle,py-usercustomize"]);
        command.args(["--format", "json", "--python"]).arg(&python).arg("--nccl").arg(&library);
        let result = finish(&mut command).exits(0).result();
        assert_eq!(result.paths.len(), 2);
        compare(&result, &version, Kind::of(python.as_ref()), &[]);
    }
}

/// One line of the table.
struct Row {
    path: &'static str,
    process: usize,
    place: &'static str,
    exec: &'static str,
    live: &'static str,
    latched: &'static str,
    verdict: &'static str,
    condition: Option<&'static str>,
}

fn rows() -> impl Iterator<Item = Row> {
    ROWS.lines().filter(|line| !line.is_empty()).map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let &[path, process, place, exec, live, latched, verdict, ref rest @ ..] = &words[..]
        else {
            panic!("a row is too short: {line}");
        };
        let process = process.parse().expect("a number");
        let condition = rest.first().copied();
        Row { path, process, place, exec, live, latched, verdict, condition }
    })
}

impl Row {
    /// Whether the row is about this library and this kind of Python.
    fn applies(&self, version: &str, python: Kind) -> bool {
        match self.condition {
            None => true,
            Some("venv") => python.venv,
            Some("base-python") => !python.venv,
            Some("site-of-its-own") => python.own_site,
            Some("no-site-of-its-own") => !python.own_site,
            Some(text) => {
                let (below, limit) = match text.strip_prefix('<') {
                    Some(limit) => (true, limit),
                    None => (false, text.strip_prefix(">=").expect("a known condition")),
                };
                below == (minor(version) < minor(limit))
            }
        }
    }

    /// What a word of the table stands for, for the variable of this index.
    fn value(&self, word: &str, variable: usize) -> Option<&'static str> {
        let place = if word == "yes" { self.place } else { word };
        let found = VALUES.iter().find(|(name, _)| *name == place);
        assert!(found.is_some() || word == "no", "unknown word {word}");
        found.map(|(_, values)| values[variable])
    }

    /// Everything that the program is to report, in its own words.
    fn expected(&self, variable: usize) -> String {
        let text = |word| match self.value(word, variable) {
            None => Seen::Absent,
            Some(value) => Seen::Value(value.into()),
        };
        let latched = match (NAMES[variable].1, self.value(self.latched, variable)) {
            (None, _) => Latched::NotCached,
            (Some(default), None) => Latched::Value(default),
            (Some(_), Some(value)) => Latched::Value(value.parse().expect("a number")),
        };
        let [set, exec, live, read] = ["yes", self.exec, self.live, self.latched].map(text);
        let place = self.place.trim_end_matches('2');
        let seen = [&set, &exec, &live, &read];
        let name = NAMES[variable].0;
        let known = facts(self.process, name, place, seen, &latched, self.verdict);
        format!("{known}, {}", self.effect(variable))
    }

    /// What a communicator is to show.
    fn effect(&self, variable: usize) -> String {
        if variable >= 5 {
            return "shows nothing".into();
        }
        let outcome = if self.latched == "yes" { "as_set" } else { "not_taken" };
        match self.value(self.latched, variable) {
            None => format!("{outcome}, as without it"),
            Some(value) => {
                let spelled = SPELLED.iter().find(|name| name.eq_ignore_ascii_case(value));
                format!("{outcome}, in force {}", spelled.unwrap_or(&value))
            }
        }
    }
}

/// What a communicator showed; what no place sets is NCCL's own choice.
fn shown(o: &Observation) -> String {
    let (in_force, outcome) = match &o.effect {
        None => return "shows nothing".into(),
        Some(Effect::Unreadable { unreadable }) => return format!("unreadable: {unreadable}"),
        Some(Effect::Known { in_force, outcome }) => (in_force.to_string(), outcome),
    };
    let outcome = outcome.map_or("unknown", |outcome| outcome.word());
    let set = VALUES.iter().flat_map(|(_, values)| values);
    match set.into_iter().any(|value| value.eq_ignore_ascii_case(&in_force)) {
        true => format!("{outcome}, in force {in_force}"),
        false => format!("{outcome}, as without it"),
    }
}

fn minor(version: &str) -> u32 {
    version.split('.').nth(1).and_then(|n| n.parse().ok()).expect("a version such as 2.27.7")
}

fn facts(
    process: usize,
    variable: &str,
    place: &str,
    seen: [&Seen; 4],
    latched: &Latched,
    verdict: &str,
) -> String {
    let json = |value: &Seen| serde_json::to_string(value).expect("plain data");
    let [expected, exec, live, read] = seen.map(json);
    let latched = serde_json::to_string(latched).expect("plain data");
    format!(
        "process {process} {variable} {place}={expected}: E {exec} L {live} N {latched} \
         read {read}: {verdict}"
    )
}

fn observed(o: &Observation) -> String {
    let seen = [&o.expected, &o.exec, &o.live, &o.read];
    let place = o.set_in.word();
    let known = facts(o.process, &o.variable, place, seen, &o.latched, o.verdict.word());
    format!("{known}, {}", shown(o))
}

/// Fails with all rows of all paths that differ.
fn compare(result: &EnvCheck, version: &str, python: Kind, may_skip: &[&str]) {
    let differences: Vec<String> =
        result.paths.iter().flat_map(|path| differing(path, version, python, may_skip)).collect();
    assert!(differences.is_empty(), "NCCL {version}:\n{}", differences.join("\n"));
}

fn differing(path: &PathResult, version: &str, python: Kind, may_skip: &[&str]) -> Vec<String> {
    if path.status == Status::Skipped && may_skip.contains(&path.id.as_str()) {
        return Vec::new();
    }
    if path.status != Status::Ran {
        return vec![format!("{} {}: {:?}", path.id, path.status, path.reason)];
    }
    let of_path = rows().filter(|row| row.path == path.id && row.applies(version, python));
    let variables = 0..NAMES.len();
    let mut expected: Vec<String> =
        of_path.flat_map(|row| variables.clone().map(move |v| row.expected(v))).collect();
    let mut found: Vec<String> = path.observations.iter().map(observed).collect();
    expected.sort();
    found.sort();
    let missing = expected.iter().filter(|line| !found.contains(line));
    let surplus = found.iter().filter(|line| !expected.contains(line));
    let missing = missing.map(|line| format!("{} expected {line}", path.id));
    missing.chain(surplus.map(|line| format!("{} observed {line}", path.id))).collect()
}

/// What about an interpreter changes its rows.
#[derive(Clone, Copy)]
struct Kind {
    /// It belongs to a virtual environment, so usercustomize is not imported.
    venv: bool,
    /// Its standard library has a sitecustomize, as Debian's does, which hides
    /// the one of a virtual environment.
    own_site: bool,
}

impl Kind {
    fn of(python: &Path) -> Self {
        let yes = |flags: &str, ask: &str| {
            let answer = Command::new(python).args([flags, "-c", ask]).output();
            answer.expect("Python starts").stdout.starts_with(b"True")
        };
        let own = "import importlib.util as u; print(u.find_spec('sitecustomize') is not None)";
        Self {
            venv: yes("-I", "import sys; print(sys.prefix != sys.base_prefix)"),
            // Without site there is only the standard library to look in.
            own_site: yes("-IS", own),
        }
    }
}
