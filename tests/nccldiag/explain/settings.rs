//! What a user sets, and files and plugins of the user's own.

use super::{answer, ask, asking, finding, ranges};
use crate::harness::{Sandbox, finish, main_library};
use nccldiag::model::{FailureKind, SettingEffect};
use std::process::Command;

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
fn settings_that_do_nothing_or_harm_are_findings() {
    let Some(library) = main_library() else { return };
    for (setting, effect, code) in [
        ("NCCL_ALGO=bogus", SettingEffect::Refused, "ND0122"),
        // NCCL takes 512 for it; without it, 256 where the ring is that slow.
        ("NCCL_NTHREADS=100", SettingEffect::Changes, "ND0121"),
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
