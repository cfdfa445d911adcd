//! `explain`: what NCCL would choose on a described machine, as a user asks for
//! it. The real libnccl answers; the machine does not exist.

use crate::harness::{Ended, Sandbox, Started, eventually, finish, library, main_library};
use nccldiag::model::{
    ChoiceDifference, Explain, ExplainFinding, FailureKind, PredictedRange, SettingEffect,
};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::Command;

/// `nccldiag explain` with this library.
fn asking<S: AsRef<OsStr>>(
    sandbox: &Sandbox,
    library: &Path,
    args: impl IntoIterator<Item = S>,
) -> Command {
    let mut command = sandbox.program();
    command.arg("explain").arg("--nccl").arg(library).args(args);
    command
}

fn explain<S: AsRef<OsStr>>(library: &Path, args: impl IntoIterator<Item = S>) -> Ended {
    let sandbox = Sandbox::new();
    let ended = finish(&mut asking(&sandbox, library, args));
    sandbox.assert_nothing_left();
    ended
}

#[track_caller]
fn answer(ended: &Ended) -> Explain {
    serde_json::from_slice(&ended.exits(0).stdout)
        .unwrap_or_else(|error| panic!("no result: {error}\n{}\n{}", ended.out(), ended.err()))
}

#[track_caller]
fn ask(library: &Path, args: &[&str]) -> Explain {
    answer(&explain(library, args.iter().chain(&["--format", "json"])))
}

/// `Ring LL 8..1048576`
fn in_words(range: &PredictedRange) -> String {
    let name = |part: &Option<String>| part.clone().unwrap_or_else(|| "?".into());
    format!("{} {} {}..{}", name(&range.algo), name(&range.proto), range.from, range.to)
}

fn ranges(result: &Explain) -> Vec<String> {
    result.prediction.ranges.iter().map(in_words).collect()
}

#[track_caller]
fn finding<'a>(result: &'a Explain, code: &str) -> &'a ExplainFinding {
    let found = result.findings.iter().find(|one| one.finding.code.number() == code);
    found.unwrap_or_else(|| panic!("no {code} among {:#?}", result.findings))
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

#[test]
fn a_board_with_nvswitches_gets_ring_and_then_nvls() {
    let Some(library) = main_library() else { return };
    let result = ask(&library, &["--topology", "h100x8"]);
    assert_eq!(ranges(&result), ["Ring LL 8..1048576", "NVLS Simple 2097152..1073741824"]);
    assert_eq!(result.prediction.choices.len(), 28);
    assert_eq!(result.prediction.ranges[0].channels, Some([1, 24]));
    let first = &result.prediction.choices[7];
    assert_eq!(first.bytes, 1024);
    assert!((first.time_us.expect("an estimate") - 15.013).abs() < 0.001, "{first:?}");
    let bus = first.algbw.expect("by the estimate") * 2.0 * 7.0 / 8.0;
    assert!((first.busbw.expect("by the estimate") - bus).abs() < 1e-9);
    let ring = &result.prediction.rings[0];
    assert_eq!((ring.channels.len(), &ring.ranks[..]), (24, &[0, 1, 2, 3, 4, 5, 6, 7][..]));
    assert_eq!(result.prediction.transports[0].via, "P2P/CUMEM");
    assert!(result.findings.is_empty(), "{:?}", result.findings);
}

#[test]
fn the_json_has_exactly_the_documented_fields() {
    let Some(library) = main_library() else { return };
    let args = ["--topology", "rtxpro6000x8", "--sizes", "8,1M", "--format", "json"];
    let ended = explain(&library, args.iter().chain(&["--vs", "NCCL_ALGO=Tree"]));
    let json: Value = serde_json::from_slice(&ended.exits(0).stdout).expect("JSON");
    let side = [
        "choices",
        "communicator",
        "cost_table",
        "failure",
        "graph",
        "nccl",
        "node",
        "ranges",
        "rings",
        "settings",
        "transports",
        "trees",
        "warnings",
    ];
    let mut whole = side.to_vec();
    whole.extend(["differences", "findings", "notes", "provenance", "schema", "vs"]);
    whole.sort_unstable();
    assert_eq!(keys(&json), whole);
    assert_eq!(keys(&json["vs"]), side);
    assert_eq!(
        (&json["schema"], &json["provenance"]),
        (&"nccldiag/explain/1".into(), &"predicted".into())
    );
    for (what, expected) in [
        (&json["nccl"], &["cuda", "path", "version"][..]),
        (&json["node"], &["gpus", "model", "topology", "virtual"]),
        (
            &json["choices"][0],
            &[
                "algbw",
                "algo",
                "busbw",
                "bytes",
                "channels",
                "collective",
                "proto",
                "threads",
                "time_us",
            ],
        ),
        (
            &json["ranges"][0],
            &[
                "algo",
                "busbw",
                "channels",
                "collective",
                "from",
                "proto",
                "threads",
                "time_us",
                "to",
            ],
        ),
        (
            &json["graph"][0],
            &["bw_inter", "bw_intra", "channels", "name", "pattern", "type_inter", "type_intra"],
        ),
        (
            &json["cost_table"][0],
            &[
                "algo",
                "bandwidth",
                "collective",
                "disabled_by",
                "enabled",
                "forced",
                "latency_us",
                "max_threads",
                "proto",
            ],
        ),
        (&json["rings"][0], &["channels", "ranks"]),
        (&json["trees"][0], &["channels", "parents"]),
        (&json["transports"][0], &["connections", "pairs", "via"]),
        (&json["communicator"], &["buffers", "channels", "max_ctas", "min_ctas"]),
        (
            &json["vs"]["settings"][0],
            &["adjusted_to", "effect", "messages", "name", "understood", "value"],
        ),
        (&json["differences"], &["choices", "facts"]),
        (
            &json["differences"]["choices"][0],
            &["collective", "from", "other", "this", "time_ratio", "to"],
        ),
        (&json["differences"]["choices"][0]["other"], &["algo", "channels", "proto", "threads"]),
        (&json["differences"]["facts"][0], &["other", "this", "what"]),
        (&json["findings"][0], &["code", "fix", "message", "severity", "tried", "where"]),
        (
            &json["findings"][0]["tried"][0],
            &["channels", "choices", "failure", "ring", "settings", "time_ratio", "via"],
        ),
    ] {
        assert_eq!(keys(what), expected, "{what}");
    }
    assert_eq!(json["choices"][0]["channels"], 1);
}

#[test]
fn every_format_says_that_it_is_predicted() {
    let Some(library) = main_library() else { return };
    for format in ["table", "json", "csv", "markdown"] {
        let args = ["--topology", "a100x2-bridge", "--sizes", "8,1G", "--format", format];
        let text = explain(&library, args).exits(0).out();
        assert!(text.contains("predicted"), "{format}: {text}");
        assert!(text.contains("2.27.7"), "{format}: {text}");
    }
}

#[test]
fn a_setting_is_named_where_it_turns_things_off() {
    let Some(library) = main_library() else { return };
    let args =
        ["--topology", "h100x8", "--sizes", "8..1G", "-e", "NCCL_ALGO=Ring", "-e", "NCCL_PROTO=LL"];
    let result = ask(&library, &args);
    assert_eq!(ranges(&result), ["Ring LL 8..1073741824"]);
    let effects: Vec<_> = result.prediction.settings.iter().map(|one| one.effect).collect();
    assert_eq!(effects, [SettingEffect::Changes; 2]);
    for cell in &result.prediction.cost_table {
        assert_eq!(cell.enabled, (&*cell.algo, &*cell.proto) == ("Ring", "LL"), "{cell:?}");
    }
    let why = |algo: &str, proto: &str| {
        let cell = result.prediction.cost_table.iter().find(|c| c.algo == algo && c.proto == proto);
        cell.and_then(|cell| cell.disabled_by.clone()).expect("it is off")
    };
    assert_eq!(why("Tree", "LL"), "NCCL_ALGO=Ring");
    assert_eq!(why("Ring", "Simple"), "NCCL_PROTO=LL");
    assert_eq!(why("Tree", "Simple"), "the settings together");
    assert!(why("CollNetDirect", "Simple").contains("CollNet"));
}

#[test]
fn all_collectives_are_asked_for_by_name() {
    let Some(library) = main_library() else { return };
    let args =
        ["--topology", "h100x8", "--sizes", "1M", "--collective", "all-gather,ReduceScatter"];
    let result = ask(&library, &args);
    let names: Vec<_> = result.prediction.choices.iter().map(|c| &*c.collective).collect();
    assert_eq!(names, ["AllGather", "ReduceScatter"]);
    assert!(result.prediction.choices.iter().all(|choice| choice.bytes == 1 << 20));
    let all = ask(&library, &["--topology", "a100x8", "--sizes", "1M", "--collective", "all"]);
    assert_eq!(all.prediction.choices.len(), 5);
    assert!(all.prediction.choices.iter().all(|choice| choice.algo.is_some()));
}

/// What owners of two-socket machines with eight such cards published, with its
/// cause, and what helps.
#[test]
fn the_two_socket_pathology_is_found_and_settings_are_tried() {
    let Some(library) = main_library() else { return };
    let result = ask(&library, &["--topology", "rtxpro6000x8"]);
    let ring = &result.prediction.graph[0];
    assert_eq!((ring.bw_intra, &*ring.type_intra, ring.channels), (0.1, "SYS", 1));
    let found = finding(&result, "ND0201");
    assert!(found.finding.message.contains("18 GB/s"), "{}", found.finding.message);
    let tried = |text: &str| {
        let one = found.tried.iter().find(|one| one.settings == text);
        one.unwrap_or_else(|| panic!("no {text} in {:#?}", found.tried))
    };
    assert_eq!(tried("NCCL_MIN_NCHANNELS=8").channels, Some(8));
    assert_eq!(tried("NCCL_P2P_LEVEL=SYS").via, ["P2P/CUMEM"]);
    let faster = found.tried.iter().find(|one| one.settings.starts_with("NCCL_TOPO_FILE"));
    let faster = faster.expect("a topology with other CPUs was tried");
    assert_eq!(faster.channels, Some(4));
    assert!(faster.time_ratio.expect("estimates") < 0.1, "{faster:?}");
    // Known to be mended there.
    let Some(newest) = self::library("2.32.3+cu12") else { return };
    let mended = ask(&newest, &["--topology", "rtxpro6000x8", "--once"]);
    assert_eq!(mended.prediction.graph[0].bw_intra, 15.0);
}

#[test]
fn a_damaged_bridge_shows_in_a_comparison() {
    let Some(library) = main_library() else { return };
    let sandbox = Sandbox::new();
    let whole = include_str!("../../matrix/topologies/a100x2-bridge.xml");
    let damaged = whole.replacen("count=\"12\"", "count=\"1\"", 1);
    assert_ne!(whole, damaged);
    let damaged = sandbox.file("damaged.xml", damaged);
    let args: Vec<OsString> =
        ["--topology", "a100x2-bridge", "--format", "json", "--vs-topology"].map(Into::into).into();
    let ended = finish(&mut asking(&sandbox, &library, args.iter().chain([&damaged.into()])));
    let result = answer(&ended);
    let differences = result.differences.expect("two sides");
    let channels = differences.facts.iter().find(|one| one.what == "channels");
    let channels = channels.expect("that is what the damage costs");
    assert_eq!((&*channels.this, &*channels.other), ("24", "2"));
    let slower = differences.choices.last().expect("choices differ");
    assert!(slower.time_ratio.expect("estimates")[1] > 5.0, "{slower:?}");
    let args = ["--format", "json", "--topology"].map(OsString::from);
    let only = finish(&mut asking(
        &sandbox,
        &library,
        args.iter().chain([&sandbox.path().join("damaged.xml").into()]),
    ));
    assert!(finding(&answer(&only), "ND0208").finding.message.contains("NVLinks"));
}

#[test]
fn two_settings_and_two_versions_are_compared() {
    let Some(library) = main_library() else { return };
    let result =
        ask(&library, &["--topology", "h100x8", "-e", "NCCL_ALGO=Ring", "--vs", "NCCL_ALGO="]);
    let differences = result.differences.expect("two sides");
    let other = |one: &ChoiceDifference| (one.other.algo.clone(), one.other.proto.clone());
    let nvls = (Some("NVLS".into()), Some("Simple".into()));
    assert!(differences.choices.iter().any(|one| other(one) == nvls));
    assert!(differences.choices.iter().all(|one| one.from >= 1 << 20), "small ones are alike");
    assert!(result.vs.expect("the other side").settings.is_empty());
    let same = ask(&library, &["--topology", "h100x8", "--vs", ""]);
    let none = same.differences.expect("two sides");
    assert!(none.choices.is_empty() && none.facts.is_empty(), "{none:?}");
    let Some(newest) = self::library("2.32.3+cu12") else { return };
    let newest = newest.to_str().expect("a plain path");
    let result = ask(&library, &["--topology", "h100x8", "--vs-nccl", newest]);
    assert_eq!(result.vs.expect("the other side").nccl.version, "2.32.3");
    assert!(!result.differences.expect("two sides").choices.is_empty());
}

#[test]
fn settings_that_do_nothing_or_harm_are_findings() {
    let Some(library) = main_library() else { return };
    for (setting, effect, code) in [
        ("NCCL_ALGO=bogus", SettingEffect::Refused, "ND0122"),
        ("NCCL_NTHREADS=100", SettingEffect::None, "ND0121"),
        ("NCCL_MIN_NCHANNELS=100", SettingEffect::Changes, "ND0121"),
        ("NCCL_FOO=1", SettingEffect::Unknown, "ND0112"),
        ("NCCL_IB_TC=5", SettingEffect::NotRead, "ND0111"),
        ("NCCL_IGNORE_CPU_AFFINITY=1", SettingEffect::None, "ND0203"),
        ("NCCL_BUFFSIZE=8M", SettingEffect::Crashes, "ND0204"),
        ("NCCL_BUFFSIZE=8M", SettingEffect::Crashes, "ND0110"),
        ("NCCL_PROTO=LL128", SettingEffect::Changes, "ND0206"),
        ("NCCL_ALGO=NVLSTree", SettingEffect::Refused, "ND0205"),
    ] {
        let result =
            ask(&library, &["--topology", "rtxpro6000x8", "--sizes", "8,1M", "-e", setting]);
        assert_eq!(result.prediction.settings[0].effect, effect, "{setting}");
        let places = &finding(&result, code).finding.places;
        assert!(places.iter().any(|place| place == setting), "{setting}: {places:?}");
    }
}

#[test]
fn what_was_answered_before_nccl_crashed_stays() {
    let Some(library) = main_library() else { return };
    let args = ["--topology", "rtxpro6000x8", "-e", "NCCL_BUFFSIZE=8M"];
    let result = ask(&library, &args);
    let failure = result.prediction.failure.expect("NCCL divides by zero");
    assert!(
        failure.kind == FailureKind::Crashed && failure.message.contains("SIGFPE"),
        "{failure:?}"
    );
    assert_eq!(result.prediction.ranges[0].algo.as_deref(), Some("Ring"));
    let buffers = result.prediction.communicator.expect("init worked").buffers;
    assert_eq!(buffers.expect("it was read").map(|size| size == 8), [false, false, true]);
}

#[test]
fn this_machines_settings_stay_out_unless_asked_for() {
    let Some(library) = main_library() else { return };
    let sandbox = Sandbox::new();
    let run = |more: &[&str]| {
        let args = ["--topology", "h100x8", "--sizes", "1G", "--format", "json"];
        let mut command = asking(&sandbox, &library, args.iter().chain(more));
        command
            .env("NCCL_ALGO", "Tree")
            .env("NCCL_DEBUG", "WARN")
            .env("NCCL_SOCKET_IFNAME", "eth0");
        answer(&finish(&mut command))
    };
    let without = run(&[]);
    assert_eq!(ranges(&without), ["NVLS Simple 1073741824..1073741824"]);
    assert!(without.prediction.settings.is_empty());
    let with = run(&["--inherit-env"]);
    assert_eq!(ranges(&with), ["Tree Simple 1073741824..1073741824"]);
    let names: Vec<_> = with.prediction.settings.iter().map(|one| &*one.name).collect();
    assert_eq!(names, ["NCCL_ALGO"]);
    assert!(with.notes.iter().any(|note| note.contains("NCCL_DEBUG")), "{:?}", with.notes);
    let over = run(&["--inherit-env", "-e", "NCCL_ALGO=Ring"]);
    assert_eq!(ranges(&over), ["Ring Simple 1073741824..1073741824"]);
}

#[test]
fn the_users_own_topology_and_graph_files_are_used() {
    let Some(library) = main_library() else { return };
    let sandbox = Sandbox::new();
    let graph = sandbox.path().join("graph.xml");
    let graph = graph.to_str().expect("a plain path");
    let dump = format!("NCCL_GRAPH_DUMP_FILE={graph}");
    ask(&library, &["--topology", "a100x8", "--sizes", "8", "--once", "-e", &dump]);
    let text = std::fs::read_to_string(graph).expect("NCCL dumped its graphs");
    // One channel of the ring instead of all.
    let ring = text.find("<graph id=\"0\"").expect("the ring is first");
    let end = ring + text[ring..].find("</graph>").expect("it ends");
    let block = &text[ring..end];
    let channel = block.find("<channel>").expect("a channel");
    let stop = block.find("</channel>").expect("it ends") + "</channel>".len();
    let head = block[..channel].to_owned();
    let count = head.find("nchannels=\"").expect("a count") + "nchannels=\"".len();
    let width = head[count..].find('"').expect("a quote");
    let mut head = head;
    head.replace_range(count..count + width, "1");
    let one = format!("{}{head}{}{}", &text[..ring], &block[channel..stop], &text[end..]);
    std::fs::write(graph, one).expect("write it back");
    let file = format!("NCCL_GRAPH_FILE={graph}");
    let result = ask(&library, &["--topology", "a100x8", "--sizes", "1G", "-e", &file]);
    assert_eq!(result.prediction.graph[0].channels, 1);
    assert_eq!(result.prediction.settings[0].effect, SettingEffect::Changes);
}

#[test]
fn a_tuner_plugin_of_the_user_decides() {
    let Some(library) = main_library() else { return };
    if !crate::harness::has_tools(&["cc"]) {
        return;
    }
    let sandbox = Sandbox::new();
    let source = sandbox.file("tuner.c", TUNER);
    let plugin = sandbox.path().join("tuner.so");
    let status =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&plugin).arg(source).status();
    assert!(status.expect("start cc").success());
    let setting = format!("NCCL_TUNER_PLUGIN={}", plugin.display());
    let result = ask(&library, &["--topology", "h100x8", "--sizes", "8..1G", "-e", &setting]);
    assert_eq!(ranges(&result), ["Tree Simple 8..1073741824"]);
    assert_eq!(result.prediction.settings[0].effect, SettingEffect::Changes);
}

/// A tuner (interface version 4) that makes Tree/Simple free of cost.
const TUNER: &str = r#"
#include <stddef.h>
typedef void (*logger)(int, unsigned long, const char *, int, const char *, ...);
static int init(size_t ranks, size_t nodes, logger log, void **context) {
    (void)ranks; (void)nodes; (void)log; *context = NULL; return 0;
}
static int choose(void *context, int function, size_t bytes, int pipe, float **table, int algorithms,
                  int protocols, int registered, int *channels) {
    float *costs = (float *)table;
    (void)context; (void)function; (void)bytes; (void)pipe; (void)registered; (void)algorithms;
    costs[0 * protocols + 2] = 0.0f;
    *channels = 0;
    return 0;
}
static int destroy(void *context) { (void)context; return 0; }
const struct {
    const char *name;
    int (*init)(size_t, size_t, logger, void **);
    int (*choose)(void *, int, size_t, int, float **, int, int, int, int *);
    int (*destroy)(void *);
} ncclTunerPlugin_v4 = { "nccldiag-test", init, choose, destroy };
"#;

#[test]
fn a_version_says_what_it_cannot_tell() {
    let Some(library) = library("2.18.3+cu12") else { return };
    let result = ask(&library, &["--topology", "h100x8"]);
    assert!(result.prediction.choices.iter().all(|c| c.algo.is_none() && c.time_us.is_none()));
    assert!(result.prediction.choices.iter().all(|c| c.channels.is_some()), "kernels tell");
    let text = explain(&library, ["--topology", "h100x8"]).exits(0).out();
    assert!(text.contains("n/a"), "{text}");
}

#[test]
fn wrong_usage_is_told_before_anything_runs() {
    let Some(library) = main_library() else { return };
    for (args, text) in [
        (&["--topology", "h100x8", "--sizes", "1T"][..], "--sizes"),
        (&["--topology", "h100x8", "--collective", "alltoall"], "--collective"),
        (&["--topology", "h100x8", "-e", "NCCL_ALGO"], "NAME=VALUE"),
        (&["--topology", "h100x8", "--vs", "A='1"], "--vs"),
        (&["--topology", "h100x8", "--driver", "550"], "--driver"),
        (&["--topology", "h100x8", "--gpus", "9"], "--gpus 9"),
        (&["--topology", "h100x8", "--fail-on", "ND9999"], "--fail-on"),
        (&[], "--topology"),
    ] {
        explain(&library, args.iter()).exits(2).complains(&[text]);
    }
    for (args, text) in [
        (&["--topology", "/no/such/file"][..], "/no/such/file"),
        (&["--topology", "h100x9"], "h100x8"),
        (&["--topology", "h100x8", "--gpu", "rtx4090"], "compute capability"),
    ] {
        explain(&library, args.iter()).exits(3).complains(&[text]);
    }
    explain(Path::new("/no/such/library"), ["--topology", "h100x8"])
        .exits(3)
        .complains(&["--nccl"]);
}

#[test]
fn findings_can_fail_a_script() {
    let Some(library) = main_library() else { return };
    let args = ["--topology", "rtxpro6000x8", "--sizes", "8", "--once", "--fail-on"];
    explain(&library, args.iter().chain(&["no-channels-found"])).exits(1);
    explain(&library, args.iter().chain(&["ND0208"])).exits(0);
    explain(&library, args.iter().chain(&["any"])).exits(1);
}

#[test]
fn a_killed_explain_leaves_no_rank_behind() {
    let Some(library) = main_library() else { return };
    let sandbox = Sandbox::new();
    let mut run = Started::new(&mut asking(
        &sandbox,
        &library,
        ["--topology", "h100x8", "--sizes", "8..64G"],
    ));
    eventually("ranks", || {
        let ranks = sandbox.processes().iter().filter(|p| p.1.contains("__vrank")).count();
        (ranks > 4 || !run.is_running()).then_some(())
    });
    if run.is_running() {
        run.signal(Signal::SIGKILL);
    }
    run.end();
    sandbox.wait_until_empty();
    sandbox.assert_nothing_left();
}

#[test]
fn the_presets_are_listed() {
    let ended = finish(Sandbox::new().program().args(["explain", "--list"]));
    let text = ended.exits(0).out();
    for name in ["h100x8", "rtxpro6000x8-switch", "rtx4090-p2p"] {
        assert!(text.contains(name), "{text}");
    }
}
