use super::{csv, markdown, samples, table};
use crate::model::{Explain, RingOrder, TreeShape};
use crate::render::text::Look;
use proptest::prelude::*;
use serde_json::Value;

const PLAIN: Look = Look { terminal: false, colour: false, width: 80 };
const HOSTILE: &str = "\x1b[2J\x07\r\n\t\u{9b}31m\u{202e}|x| `<b>`\n| y |\n# z\n- 漢字";

fn shown(result: &Explain, look: Look) -> String {
    let mut out = Vec::new();
    table::write(result, look, &mut out).expect("a Vec takes all");
    String::from_utf8(out).expect("UTF-8")
}

fn marked_down(result: &Explain) -> String {
    let mut out = Vec::new();
    markdown::write(result, &mut out).expect("a Vec takes all");
    String::from_utf8(out).expect("UTF-8")
}

fn separated(result: &Explain) -> Vec<::csv::StringRecord> {
    let mut out = Vec::new();
    csv::write(result, &mut out).expect("a Vec takes all");
    ::csv::Reader::from_reader(&*out).records().collect::<Result<_, _>>().expect("CSV")
}

/// The same result with something behind every text that is free.
fn with_suffix(result: &Explain, suffix: &str) -> Explain {
    fn add(value: &mut Value, suffix: &str) {
        match value {
            Value::String(text) => text.push_str(suffix),
            Value::Array(values) => values.iter_mut().for_each(|value| add(value, suffix)),
            Value::Object(map) => {
                let free = |key: &str| !["code", "severity", "effect", "kind"].contains(&key);
                map.iter_mut()
                    .filter(|(key, _)| free(key))
                    .for_each(|(_, value)| add(value, suffix));
            }
            _ => {}
        }
    }
    let mut value = serde_json::to_value(result).expect("JSON");
    add(&mut value, suffix);
    serde_json::from_value(value).expect("the same structure")
}

fn assert_harmless(text: &str) {
    let bad = text.chars().find(|c| (c.is_control() && *c != '\n') || *c == '\u{202e}');
    assert_eq!(bad, None, "{text}");
}

/// How many cells each table row has, by the pipes that are not escaped.
fn cells(line: &str) -> usize {
    let mut escaped = false;
    let is_pipe = |c: char| {
        let pipe = c == '|' && !escaped;
        escaped = c == '\\' && !escaped;
        pipe
    };
    line.chars().map(is_pipe).filter(|pipe| *pipe).count()
}

fn assert_fits(text: &str, width: usize) {
    for line in text.lines() {
        // A word that is longer than what is left beside indentation and lead.
        let long = |word: &str| textwrap::core::display_width(word) + 30 > width;
        let fits = textwrap::core::display_width(line) <= width;
        assert!(fits || line.split(' ').any(long), "wider than {width}: {line}\n{text}");
    }
}

#[test]
fn a_usual_run_shows_the_answer_first_and_why_below() {
    let expected = "\
NCCL 2.27.7 on 8 x NVIDIA H100 80GB HBM3 (h100x8): predicted, no GPU took part

note: network cards of this machine were kept out

AllReduce        algo      proto   channels  threads  time, us   busbw, GB/s
                                                      (NCCL's
                                                      estimate)
8 B - 64 KiB     Ring      LL      1-16      512-640  15.0-16.2  <0.01-7.1
128 KiB - 1 MiB  Ring      LL      24        512-640  18.4-41.6  12.5-44.1
2 MiB            NVLSTree  Simple  16        512-640  52.0       70.6
4 MiB - 1 GiB    NVLS      Simple  16        512-640  61.2-4123  120-456
28 sizes asked for; what NCCL chooses between them was not asked

graph search    channels    GB/s each  paths inside/between machines
ring            12          30.0       NVL/PIX
balanced tree   12          30.0       NVL/PIX
NVLS            8           45.0       NVL/PIX
CollNet direct  none found

Cost table: latency in us / bandwidth in GB/s that NCCL expects
AllReduce  LL           LL128         Simple
Tree       6.8 / 87.7   14.0 / 220.8  56.0 / 240.0
Ring       6.6 / 102.9  14.0 / 330.0  8.4 / 360.0
NVLS       off          off           25.0 / 360.0
off: CollNetDirect, CollNetChain (no CollNet on one machine)
off: NVLSTree (one machine)
off: PAT

rings       channels 0-23: 0 1 2 3 4 5 6 7
trees       channels 0-23: 0 > 1 > 2 > 3 > 4 > 5 > 6 > 7
transports  P2P/CUMEM: all 56 connected pairs, 384 connections
after init  24 channels, CTAs up to 32
            buffers: LL 512 KiB, LL128 4800 KiB, Simple 4 MiB
";
    assert_eq!(shown(&samples::usual(), PLAIN), expected);
}

#[test]
fn a_failure_stands_right_below_what_was_asked() {
    let expected = "\
NCCL 2.27.7 on 8 x NVIDIA H100 80GB HBM3 (h100x8): predicted, no GPU took part

setting          NCCL understood  effect
NCCL_ALGO=bogus  -                refused
  NCCL says: NCCL_ALGO: Unrecognized algorithm 'bogus'

failed: at communicator init: ncclInvalidUsage (5) on all ranks
";
    assert_eq!(shown(&samples::failed(), PLAIN), expected);
}

#[test]
fn what_a_version_does_not_tell_is_said_once() {
    let expected = "\
NCCL 2.19.3 on 8 x NVIDIA H100 80GB HBM3 (h100x8): predicted, no GPU took part

AllReduce    algo  proto  channels  threads  time, us (NCCL's  busbw, GB/s
                                             estimate)
8 B - 1 GiB  n/a   n/a    n/a       n/a      n/a               n/a
n/a: NCCL 2.19.3 did not tell algorithm, protocol, channels, threads, time
2 sizes asked for; what NCCL chooses between them was not asked

after init  not available
";
    assert_eq!(shown(&samples::silent(), PLAIN), expected);
}

#[test]
fn a_comparison_shows_only_what_differs() {
    let expected = "\
Two sides compared: predicted, no GPU took part
this:  NCCL 2.27.7 on 8 x NVIDIA H100 80GB HBM3 (h100x8)
other: NCCL 2.32.3 on 8 x NVIDIA H100 80GB HBM3 (h100x8)
asked with different: settings, NCCL version

note: network cards of this machine were kept out

       setting         NCCL understood  effect
other  NCCL_ALGO=Ring  as written       changes the outcome

AllReduce      this                      other        other's time
                                                      (NCCL's estimate)
8 B - 64 KiB   Ring/LL, 16 channels      Ring/LL, 24  same to 1.9x slower
                                         channels
4 MiB - 1 GiB  NVLS/Simple, 16 channels  n/a          n/a

also        this                           other
ring graph  12 channels, 30 GB/s, NVL/PIX  2 channels, 0.1 GB/s, SYS/SYS

Only differences are shown; explain one side alone for cost table, rings and
    transports
";
    assert_eq!(shown(&samples::compared(), PLAIN), expected);
}

#[test]
fn no_differences_are_said_and_not_claimed_after_a_failure() {
    let none = "no differences: NCCL chooses and expects the same on both sides";
    let mut result = samples::alike();
    assert!(shown(&result, PLAIN).contains(none));
    let failed = samples::failed().prediction.failure;
    if let Some(other) = &mut result.vs {
        other.failure = failed;
    }
    let text = shown(&result, PLAIN);
    assert!(text.contains("failed on the other side: at communicator init"), "{text}");
    assert!(text.contains("no differences in what both sides told") && !text.contains(none));
}

#[test]
fn settings_of_two_sides_say_whose_they_are() {
    let mut result = samples::rich();
    result.vs = Some(result.prediction.clone());
    if let Some(other) = &mut result.vs {
        other.settings[0].value = "16M".into();
        other.warnings.push("only here".into());
    }
    let text = shown(&result, PLAIN);
    for line in [
        "this   NCCL_BUFFSIZE=8M      8                changes the outcome",
        "both   NCCL_PROTO=LL,Simple  as written       no effect here",
        "other  NCCL_BUFFSIZE=16M     8                changes the outcome",
        "asked with different: settings",
        "NCCL warns, other side: only here",
    ] {
        assert!(text.lines().any(|l| l == line), "{line}\n{text}");
    }
    assert_eq!(text.matches("could not find libnccl-net.so").count(), 1);
}

#[test]
fn all_that_a_rich_result_has_is_told() {
    let text = shown(&samples::rich(), PLAIN);
    for part in [
        "NCCL_NTHREAD=256      -                unknown to this NCCL",
        "NCCL says: Invalid value abc for NCCL_NTHREADS, using default -2.",
        "failed: at enqueue: Broadcast of 1 GiB",
        "n/a: the run ended (at enqueue) before NCCL told threads (in part)",
        "28 sizes answered; what NCCL chooses between them was not asked",
        "off: the same as above",
        "channels 0, 12: 7 6 5 4 3 2 1 0",
        "and 4 more, see --format json",
        "channel 3: 0 (1 (3) (4)) (2 (5) (6) (7))",
        "10 of 66 connected pairs (0->10",
        "NCCL warns: NET/Plugin",
        "ND0113 cannot-tell (warning)",
        "1.9x faster",
        "tried, failed: NCCL_ALGO=NVLS: communicator init: ncclInvalidUsage",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    let order =
        ["note:", "failed:", "AllReduce", "graph search", "NCCL warns", "ND0113", "1.9x faster"];
    let places: Vec<_> = order.iter().map(|word| text.find(word)).collect();
    assert!(places.is_sorted(), "{places:?}\n{text}");
}

#[test]
fn eight_gpus_with_a_ring_and_a_tree_for_each_channel_fit_60_lines() {
    let mut result = samples::usual();
    let (rings, trees) = (&mut result.prediction.rings, &mut result.prediction.trees);
    for channel in 1..24 {
        rings.push(RingOrder { channels: vec![channel], ..rings[0].clone() });
        trees.push(TreeShape { channels: vec![channel], ..trees[0].clone() });
    }
    let text = shown(&result, PLAIN);
    assert_eq!(text.matches("and 16 more, see --format json").count(), 2);
    assert!(text.lines().count() <= 60, "{text}");
}

#[test]
fn a_forced_pair_is_marked_and_a_failure_is_not_repeated_as_a_warning() {
    let mut result = samples::rich();
    result.prediction.cost_table[1].forced = true;
    result.prediction.warnings.push("ncclInvalidUsage".into());
    let text = shown(&result, PLAIN);
    assert!(text.contains("Tree       6.8 / 87.7   14.0 / 220.8 forced  56.0 / 240.0"), "{text}");
    assert!(!text.contains("NCCL warns: ncclInvalidUsage"), "{text}");
}

#[test]
fn folders_of_a_topology_are_shown_only_where_they_tell_sides_apart() {
    let mut result = samples::compared();
    result.prediction.node.topology = "/a/b/topo.xml".into();
    let mut other = result.vs.take();
    result.prediction.node.topology = "/a/topo.txt + b/lscpu.txt".into();
    assert!(shown(&result, PLAIN).contains("HBM3 (topo.txt + lscpu.txt):"));
    result.prediction.node.topology = "/a/b/topo.xml".into();
    assert!(shown(&result, PLAIN).contains("HBM3 (topo.xml): predicted"));
    other.iter_mut().for_each(|other| other.node.topology = "/a/c/topo.xml".into());
    result.vs = other;
    let text = shown(&result, PLAIN);
    assert!(text.contains("(/a/b/topo.xml)") && text.contains("(/a/c/topo.xml)"), "{text}");
}

#[test]
fn a_tree_that_is_none_is_listed_as_it_is() {
    for parents in [vec![1, 0], vec![-1, -1], vec![-1, 2, 1], vec![-1, 9], vec![0]] {
        let mut result = samples::usual();
        result.prediction.trees[0].parents = parents;
        assert!(shown(&result, PLAIN).contains("above each rank: "));
    }
}

#[test]
fn colour_is_there_only_when_asked_for() {
    let coloured = shown(&samples::rich(), Look { terminal: true, colour: true, width: 80 });
    assert!(coloured.contains("\x1b[1m\x1b[31mfailed: "), "{coloured:?}");
    for result in samples::all() {
        assert_harmless(&shown(&result, Look { terminal: true, ..PLAIN }));
    }
}

#[test]
fn every_format_says_that_it_is_predicted() {
    for result in samples::all() {
        assert!(shown(&result, PLAIN).contains("predicted"));
        assert!(marked_down(&result).contains("predicted"));
        assert!(separated(&result).iter().all(|record| &record[1] == "predicted"));
    }
}

#[test]
fn markdown_has_the_same_as_tables() {
    let text = marked_down(&samples::rich());
    for part in [
        "## NCCL 2.27.7 on 8 x NVIDIA H100 80GB HBM3 (h100x8): predicted",
        "| NCCL\\_BUFFSIZE=8M | 8 | changes the outcome |",
        "| 8 B - 64 KiB | Ring | LL | 1-16 | 512-640 | 15.0-16.2 | \\<0.01-7.1 |",
        "| Ring | 6.6 / 102.9 | 14.0 / 330.0 | 8.4 / 360.0 |",
        "**failed:** at enqueue",
        "- **ND0113 cannot-tell**: 2 channels over SYS/SYS",
        "| NCCL\\_MIN\\_NCHANNELS=8 | 8 | 8 channels, 15 GB/s, PHB/PIX | SHM/direct/direct |",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    // Each table needs an empty line before it, and a row of dashes.
    let lines: Vec<_> = text.lines().collect();
    let starts = lines.windows(3).filter(|l| !l[0].starts_with('|') && l[1].starts_with('|'));
    assert!(starts.clone().count() > 5);
    assert!(starts.into_iter().all(|l| l[0].is_empty() && l[2].starts_with("|---|")));
}

#[test]
fn csv_has_a_row_for_each_range_of_each_side() {
    let mut result = samples::compared();
    if let Some(other) = &mut result.vs {
        other.settings[0].value = "a b".into();
    }
    let records = separated(&result);
    let first: Vec<_> = records[0].iter().collect();
    let figures = ["15", "16.2", "0.0009333333333333333", "7.079506172839507"];
    assert_eq!(
        first[..7],
        ["this", "predicted", "2.27.7", "8", "NVIDIA H100 80GB HBM3", "h100x8", ""]
    );
    assert_eq!(first[7..16], ["AllReduce", "8", "65536", "Ring", "LL", "1", "16", "512", "640"]);
    assert_eq!(first[16..], figures);
    assert_eq!(records.len(), 5);
    assert_eq!((&records[4][0], &records[4][6]), ("vs", "NCCL_ALGO='a b'"));

    let silent = separated(&samples::silent());
    assert!(silent.len() == 1 && silent[0].iter().skip(10).all(str::is_empty));
    let failed = separated(&samples::failed());
    assert_eq!((failed.len(), &failed[0][0], &failed[0][7]), (1, "this", ""));
}

#[test]
fn hostile_text_breaks_nothing() {
    for result in samples::all() {
        let hostile = with_suffix(&result, HOSTILE);
        assert_harmless(&shown(&hostile, PLAIN));
        let text = marked_down(&hostile);
        assert_harmless(&text);
        let rows = |text: &str| text.lines().map(cells).filter(|n| *n > 0).collect::<Vec<_>>();
        assert_eq!(rows(&text), rows(&marked_down(&result)), "{text}");
        let records = separated(&hostile);
        assert_eq!(records.len(), separated(&result).len());
        records.iter().flatten().for_each(assert_harmless);
        assert!(!records.iter().flatten().any(|field| field.contains('\n')));
    }
}

#[test]
fn texts_are_shown_whole() {
    let result = with_suffix(&samples::rich(), "QQ");
    let text = shown(&result, Look { width: 500, ..PLAIN });
    let ranges = result.prediction.ranges.len();
    assert!(text.matches("LLQQ").count() + text.matches("LL128QQ").count() >= ranges);
    for part in ["2.27.7QQ", "h100x8QQ", "8MQQ", "8QQ", "ringQQ", "NVLQQ/PIXQQ", "P2P/CUMEMQQ"] {
        assert!(text.contains(part), "{part}\n{text}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_line_is_wider_than_asked_for(width in 40_usize..=120, suffix in "\\PC{0,12}") {
        for result in samples::all() {
            let text = shown(&with_suffix(&result, &suffix), Look { width, ..PLAIN });
            assert_fits(&text, width);
            assert_harmless(&text);
        }
    }

    #[test]
    fn any_text_is_harmless(suffix in any::<String>()) {
        for result in samples::all() {
            let result = with_suffix(&result, &suffix);
            assert_harmless(&shown(&result, PLAIN));
            assert_harmless(&marked_down(&result));
        }
    }
}

#[test]
fn samples_fit_80_columns_without_exception() {
    for result in samples::all() {
        for line in shown(&result, PLAIN).lines() {
            assert!(textwrap::core::display_width(line) <= 80, "{line}");
        }
    }
}
