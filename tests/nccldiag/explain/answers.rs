//! What is answered, and in which form.

use super::{ask, explain, finding, keys, ranges};
use crate::harness::{library, main_library};
use serde_json::Value;

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
    let more = tried("NCCL_MIN_NCHANNELS=8");
    assert_eq!((more.channels, more.counted), (Some(8), false));
    assert_eq!(tried("NCCL_P2P_LEVEL=SYS").via, ["P2P/CUMEM"]);
    let faster = found.tried.iter().find(|one| one.settings.starts_with("NCCL_TOPO_FILE"));
    let faster = faster.expect("a topology with other CPUs was tried");
    assert_eq!(faster.channels, Some(4));
    assert!(faster.counted && faster.time_ratio.is_none(), "what fell back does not count");
    // Known to be mended there.
    let Some(newest) = self::library("2.32.3+cu12") else { return };
    let mended = ask(&newest, &["--topology", "rtxpro6000x8", "--once"]);
    assert_eq!(mended.prediction.graph[0].bw_intra, 15.0);
}

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
            &["channels", "choices", "counted", "failure", "ring", "settings", "time_ratio", "via"],
        ),
    ] {
        assert_eq!(keys(what), expected, "{what}");
    }
    assert_eq!(json["choices"][0]["channels"], 1);
}
