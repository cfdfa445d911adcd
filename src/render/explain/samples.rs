//! Made-up results for the tests. Figures are of the right kind, and nothing
//! more: no NCCL was asked.

use crate::model::{
    ChoiceDifference, Chosen, Code, CostCell, Differences, EXPLAIN_SCHEMA, Explain, ExplainFinding,
    FactDifference, Failure, FailureKind, Finding, GraphFound, Limits, NcclAsked, NodeAsked,
    PREDICTED, PredictedChoice, PredictedRange, Prediction, Reached, RingOrder, SettingAsked,
    SettingEffect, TreeShape, Tried,
};

/// A result without anything but what was asked.
pub fn explain(prediction: Prediction) -> Explain {
    Explain {
        schema: EXPLAIN_SCHEMA.into(),
        provenance: PREDICTED.into(),
        prediction,
        vs: None,
        differences: None,
        findings: Vec::new(),
        notes: Vec::new(),
    }
}

/// A machine about which nothing is told.
pub fn bare(version: &str) -> Prediction {
    Prediction {
        nccl: NcclAsked {
            version: version.into(),
            cuda: Some("12.9".into()),
            path: "/cache/libnccl.so.2".into(),
        },
        node: NodeAsked {
            gpus: 8,
            model: "NVIDIA H100 80GB HBM3".into(),
            topology: "h100x8".into(),
            is_virtual: true,
        },
        ..Prediction::default()
    }
}

/// A usual run: eight GPUs, one collective, default settings.
pub fn usual() -> Explain {
    let mut prediction = bare("2.27.7");
    let sizes = (3..=30).map(|shift| 1_u64 << shift);
    prediction.choices = sizes.map(|bytes| choice(bytes, 15.0)).collect();
    prediction.ranges = vec![
        range([8, 65536], "Ring", "LL", [1, 16], [15.0, 16.2]),
        range([1 << 17, 1 << 20], "Ring", "LL", [24, 24], [18.4, 41.6]),
        range([1 << 21, 1 << 21], "NVLSTree", "Simple", [16, 16], [52.0, 52.0]),
        range([1 << 22, 1 << 30], "NVLS", "Simple", [16, 16], [61.2, 4123.0]),
    ];
    prediction.graph = vec![
        graph(4, "ring", 12, 30.0, "NVL"),
        graph(1, "balanced tree", 12, 30.0, "NVL"),
        graph(5, "NVLS", 8, 45.0, "NVL"),
        graph(6, "CollNet direct", 0, 0.0, "NVL"),
    ];
    prediction.cost_table = cost_table("AllReduce");
    prediction.rings = vec![RingOrder { channels: (0..24).collect(), ranks: (0..8).collect() }];
    prediction.trees =
        vec![TreeShape { channels: (0..24).collect(), parents: vec![-1, 0, 1, 2, 3, 4, 5, 6] }];
    prediction.transports = vec![
        Reached { via: "P2P/CUMEM".into(), pairs: all_pairs(8), connections: 384 },
        Reached { via: "NVLS".into(), pairs: Vec::new(), connections: 128 },
    ];
    prediction.transports.truncate(1);
    prediction.communicator = Some(Limits {
        channels: Some(24),
        buffers: Some([524_288, 4_915_200, 4_194_304]),
        min_ctas: None,
        max_ctas: Some(32),
    });
    let mut result = explain(prediction);
    result.notes = vec!["network cards of this machine were kept out".into()];
    result
}

/// All at once: settings of each effect, warnings, a partial failure, findings
/// with what was tried, several collectives and transports.
pub fn rich() -> Explain {
    let mut result = usual();
    let prediction = &mut result.prediction;
    prediction.settings = settings();
    prediction.warnings = vec!["NET/Plugin: could not find libnccl-net.so".into()];
    prediction.failure = Some(Failure {
        step: "enqueue".into(),
        message: "Broadcast of 1 GiB: ncclInvalidUsage".into(),
        kind: FailureKind::Refused,
    });
    prediction.cost_table.extend(cost_table("Broadcast"));
    prediction.ranges.push(PredictedRange {
        collective: "Broadcast".into(),
        threads: None,
        ..range([8, 1 << 29], "Ring", "LL128", [2, 24], [7.5, 901.0])
    });
    prediction.rings = (0..12)
        .map(|nth| RingOrder { channels: vec![nth, nth + 12], ranks: (0..8).rev().collect() })
        .collect();
    prediction.trees.push(TreeShape { channels: vec![3], parents: vec![-1, 0, 0, 1, 1, 2, 2, 2] });
    prediction.transports.push(Reached {
        via: "SHM/direct/direct".into(),
        pairs: (0..10).map(|nth| [nth, nth + 10]).collect(),
        connections: 20,
    });
    result.findings = vec![finding()];
    result
}

/// What NCCL 2.19 and older tell: nothing but the ranges' sizes.
pub fn silent() -> Explain {
    let mut prediction = bare("2.19.3");
    prediction.choices = vec![silent_choice(8), silent_choice(1 << 30)];
    prediction.ranges = vec![PredictedRange {
        collective: "AllReduce".into(),
        from: 8,
        to: 1 << 30,
        algo: None,
        proto: None,
        channels: None,
        threads: None,
        time_us: None,
        busbw: None,
    }];
    prediction.communicator =
        Some(Limits { channels: None, buffers: None, min_ctas: None, max_ctas: None });
    explain(prediction)
}

/// No answer at all.
pub fn failed() -> Explain {
    let mut prediction = bare("2.27.7");
    prediction.settings = vec![SettingAsked {
        name: "NCCL_ALGO".into(),
        value: "bogus".into(),
        understood: None,
        adjusted_to: None,
        effect: SettingEffect::Refused,
        messages: vec!["Unrecognized algorithm 'bogus'".into()],
    }];
    prediction.failure = Some(Failure {
        step: "communicator init".into(),
        message: "ncclInvalidUsage (5) on all ranks".into(),
        kind: FailureKind::Refused,
    });
    explain(prediction)
}

/// Two sides that differ.
pub fn compared() -> Explain {
    let mut result = usual();
    let mut other = bare("2.32.3");
    other.settings = vec![SettingAsked {
        name: "NCCL_ALGO".into(),
        value: "Ring".into(),
        understood: Some("Ring".into()),
        adjusted_to: None,
        effect: SettingEffect::Changes,
        messages: Vec::new(),
    }];
    other.ranges = vec![range([8, 1 << 30], "Ring", "LL", [1, 24], [15.0, 9000.0])];
    result.vs = Some(other);
    let choice = |from, to, this, other, time_ratio| ChoiceDifference {
        collective: "AllReduce".into(),
        from,
        to,
        this,
        other,
        time_ratio,
    };
    result.differences = Some(Differences {
        choices: vec![
            choice(8, 65536, chosen("Ring", "LL", 16), chosen("Ring", "LL", 24), Some([1.0, 1.9])),
            choice(1 << 22, 1 << 30, chosen("NVLS", "Simple", 16), Chosen::default(), None),
        ],
        facts: vec![FactDifference {
            what: "ring graph".into(),
            this: "12 channels, 30 GB/s, NVL/PIX".into(),
            other: "2 channels, 0.1 GB/s, SYS/SYS".into(),
        }],
    });
    result
}

/// Two sides that are alike.
pub fn alike() -> Explain {
    let mut result = usual();
    result.notes.clear();
    result.vs = Some(result.prediction.clone());
    result.differences = Some(Differences::default());
    result
}

/// All of the above.
pub fn all() -> Vec<Explain> {
    vec![explain(bare("2.18.3")), usual(), rich(), silent(), failed(), compared(), alike()]
}

fn choice(bytes: u64, time_us: f64) -> PredictedChoice {
    PredictedChoice {
        collective: "AllReduce".into(),
        bytes,
        algo: Some("Ring".into()),
        proto: Some("LL".into()),
        channels: Some(16),
        threads: Some(512),
        time_us: Some(time_us),
        algbw: Some(1.0),
        busbw: Some(1.75),
    }
}

fn chosen(algo: &str, proto: &str, channels: u32) -> Chosen {
    Chosen {
        algo: Some(algo.into()),
        proto: Some(proto.into()),
        channels: Some(channels),
        threads: None,
    }
}

fn silent_choice(bytes: u64) -> PredictedChoice {
    PredictedChoice {
        algo: None,
        proto: None,
        channels: None,
        threads: None,
        time_us: None,
        algbw: None,
        busbw: None,
        ..choice(bytes, 0.0)
    }
}

fn range(
    [from, to]: [u64; 2],
    algo: &str,
    proto: &str,
    channels: [u32; 2],
    time_us: [f64; 2],
) -> PredictedRange {
    #[expect(clippy::cast_precision_loss, reason = "sizes far below 2^52")]
    let busbw = |bytes: u64, time: f64| bytes as f64 * 1.75 / time / 1e3;
    PredictedRange {
        collective: "AllReduce".into(),
        from,
        to,
        algo: Some(algo.into()),
        proto: Some(proto.into()),
        channels: Some(channels),
        threads: Some([512, 640]),
        time_us: Some(time_us),
        busbw: Some([busbw(from, time_us[0]), busbw(to, time_us[1])]),
    }
}

fn graph(pattern: u32, name: &str, channels: u32, bw: f64, paths: &str) -> GraphFound {
    GraphFound {
        pattern,
        name: name.into(),
        channels,
        bw_intra: bw,
        bw_inter: bw,
        type_intra: paths.into(),
        type_inter: "PIX".into(),
    }
}

fn cost_table(collective: &str) -> Vec<CostCell> {
    let rows = [
        ("Tree", [[6.8, 87.7], [14.0, 220.8], [56.0, 240.0]], None),
        ("Ring", [[6.6, 102.9], [14.0, 330.0], [8.4, 360.0]], None),
        ("CollNetDirect", [[0.0, 0.0]; 3], Some("no CollNet on one machine")),
        ("CollNetChain", [[0.0, 0.0]; 3], Some("no CollNet on one machine")),
        ("NVLS", [[0.0, 0.0], [0.0, 0.0], [25.0, 360.0]], None),
        ("NVLSTree", [[0.0, 0.0]; 3], Some("one machine")),
        ("PAT", [[0.0, 0.0]; 3], None),
    ];
    let cells = rows.into_iter().flat_map(|(algo, figures, why)| {
        ["LL", "LL128", "Simple"].into_iter().zip(figures).map(move |(proto, [latency, bw])| {
            CostCell {
                collective: collective.into(),
                algo: algo.into(),
                proto: proto.into(),
                latency_us: latency,
                bandwidth: bw,
                max_threads: Some(512),
                enabled: bw > 0.0,
                disabled_by: why.map(Into::into),
                forced: false,
            }
        })
    });
    cells.collect()
}

fn all_pairs(ranks: u32) -> Vec<[u32; 2]> {
    let pairs = (0..ranks).flat_map(|from| (0..ranks).map(move |to| [from, to]));
    pairs.filter(|[from, to]| from != to).collect()
}

fn settings() -> Vec<SettingAsked> {
    let setting = |name: &str, value: &str, understood: Option<&str>, effect| SettingAsked {
        name: name.into(),
        value: value.into(),
        understood: understood.map(Into::into),
        adjusted_to: None,
        effect,
        messages: Vec::new(),
    };
    let mut all = vec![
        setting("NCCL_BUFFSIZE", "8M", Some("8"), SettingEffect::Changes),
        setting("NCCL_PROTO", "LL,Simple", Some("LL,Simple"), SettingEffect::None),
        setting("NCCL_IB_HCA", "mlx5_0", None, SettingEffect::NotRead),
        setting("NCCL_NTHREAD", "256", None, SettingEffect::Unknown),
        setting("NCCL_NTHREADS", "abc", Some("-2"), SettingEffect::Refused),
        setting("NCCL_MAX_NCHANNELS", "4", Some("4"), SettingEffect::NotTried),
    ];
    all[4].messages.push("Invalid value abc for NCCL_NTHREADS, using default -2.".into());
    all
}

fn finding() -> ExplainFinding {
    let tried = |settings: &str, channels, ring: Option<&str>, via: &str, time_ratio| Tried {
        settings: settings.into(),
        channels,
        ring: ring.map(Into::into),
        via: vec![via.into()],
        choices: vec![choice(1 << 20, 40.0), choice(1 << 30, 4000.0)],
        counted: true,
        time_ratio,
        failure: None,
    };
    let ring = Some("8 channels, 15 GB/s, PHB/PIX");
    ExplainFinding {
        finding: Finding::new(
            Code::CannotTell,
            "2 channels over SYS/SYS with 0.1 GB/s each: NCCL takes this CPU interconnect for slow"
                .into(),
            "try what is listed below, then measure on the real machine",
            Vec::new(),
        ),
        tried: vec![
            tried("NCCL_MIN_NCHANNELS=8", Some(8), ring, "SHM/direct/direct", Some(0.52)),
            tried("NCCL_P2P_LEVEL=SYS NCCL_MIN_NCHANNELS=8", Some(8), ring, "P2P/CUMEM", Some(1.3)),
            tried("NCCL_ALGO=Tree", None, None, "SHM", None),
            Tried {
                failure: Some("communicator init: ncclInvalidUsage".into()),
                ..tried("NCCL_ALGO=NVLS", None, None, "", None)
            },
        ],
    }
}
