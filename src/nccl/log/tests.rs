use super::*;
use proptest::prelude::*;

fn one(text: &str) -> Line<'_> {
    match lines(text.as_bytes()).next() {
        Some(Record::Nccl(line)) => line,
        other => panic!("{text}: {other:?}"),
    }
}

/// The meaning of a text in a line of rank 0.
fn meaning(text: &str) -> Event<'static> {
    let line = format!("vm:1:2 [0] NCCL INFO {text}");
    event(&one(String::leak(line)))
}

#[test]
fn who_wrote_a_line() {
    let line = one("host0:64904:64921 [1] NCCL INFO Using network IB\n");
    assert_eq!((line.host, line.pid, line.tid, line.device), (&b"host0"[..], 64904, 64921, 1));
    assert_eq!((line.level, line.text), (Level::Info, &b"Using network IB"[..]));
    let warn =
        one("[2026-12-01 12:42:16] vm:7:8 [0] misc/param.cc:100 (ncclLoadParam) NCCL ATTN x");
    assert_eq!(warn.time, Some(&b"2026-12-01 12:42:16"[..]));
    assert_eq!((warn.host, warn.level), (&b"vm"[..], Level::Attention));
    assert_eq!(warn.source, b"misc/param.cc:100 (ncclLoadParam)");
    let old = one("\nhost0:1:2 [2] transport.cc:41 NCCL WARN No transport for rank 2[b1000]\r\n");
    assert_eq!((old.source, old.level, old.device), (&b"transport.cc:41"[..], Level::Warn, 2));
    assert_eq!(old.text, b"No transport for rank 2[b1000]");
    for plain in ["# nThread 1", "vm NCCL INFO x", "a:b:c [0] NCCL INFO x", "CL INFO 3", " NCCL "] {
        assert_eq!(lines(plain.as_bytes()).next(), Some(Record::Plain(plain.as_bytes())));
    }
}

#[test]
fn other_output_in_the_same_line() {
    let log = "h0:1:2 [0] NCCL INFO a\n   0.52  16.03  16.03      0h0:1:3 [0] NCCL INFO b\n";
    let hosts: Vec<_> = lines(log.as_bytes())
        .map(|record| match record {
            Record::Nccl(line) => (line.host, line.text),
            Record::Plain(plain) => panic!("{plain:?}"),
        })
        .collect();
    assert_eq!(hosts, [(&b"h0"[..], &b"a"[..]), (b"h0", b"b")]);
}

#[test]
fn settings() {
    let env = |name, value| Event::Env { name, value };
    assert_eq!(meaning("NCCL_BUFFSIZE set by environment to 8."), env("NCCL_BUFFSIZE", "8"));
    assert_eq!(meaning("NCCL_PROTO set by environment to ^LL"), env("NCCL_PROTO", "^LL"));
    assert_eq!(meaning("NCCL_IB_HCA set to mlx5_0."), env("NCCL_IB_HCA", "mlx5_0."));
    let expected = Event::Invalid { name: "NCCL_MIN_NCHANNELS", value: "a for b", default: "-2" };
    let text = "Invalid value a for b for NCCL_MIN_NCHANNELS, using default -2.";
    assert_eq!(meaning(text), expected);
    assert_eq!(meaning("P2P Chunksize set to 524288"), Event::Other);
    assert_eq!(meaning("NCCL version 2.27.7+cuda13.0"), Event::Version("2.27.7+cuda13.0"));
}

#[test]
fn every_form_of_a_choice() {
    let old = Choose {
        collective: None,
        bytes: 1024,
        algorithm: Place::Index(1),
        protocol: Place::Index(0),
        channels: None,
        time_us: Some(15.01271),
        cluster: None,
    };
    assert_eq!(meaning("1024 Bytes -> Algo 1 proto 0 time 15.012710"), Event::Choice(old));
    let middle = Choose { collective: Some("AllReduce"), ..old };
    let text = "AllReduce: 1024 Bytes -> Algo 1 proto 0 time 15.012710";
    assert_eq!(meaning(text), Event::Choice(middle));
    let named = Choose {
        algorithm: Place::Name("RING"),
        protocol: Place::Name("SIMPLE"),
        channels: Some((0, 23)),
        time_us: None,
        ..middle
    };
    let text = "AllReduce: 1024 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..23}";
    assert_eq!(meaning(text), Event::Choice(named));
    let newest = Choose { cluster: Some(4), ..named };
    assert_eq!(meaning(&format!("{text} cgaClusterSize 4")), Event::Choice(newest));
    let symmetric = Kernel {
        collective: "AllReduce",
        kind: "Symmetric",
        bytes: 8,
        what: "AllReduce_AGxLL_R",
        channels: Some(8),
        threads: Some(512),
    };
    let text = "AllReduce [Symmetric]: 8 Bytes -> Kernel AllReduce_AGxLL_R nchannels 8 \
                nthreads 512 nWorks 1";
    assert_eq!(meaning(text), Event::Kernel(symmetric));
    let text = "AllGather [Copy Engine]: 64 Bytes -> cudaMemcpyBatch";
    let Event::Kernel(copy) = meaning(text) else { panic!("{text}") };
    assert_eq!((copy.kind, copy.what, copy.channels), ("Copy Engine", "cudaMemcpyBatch", None));
}

#[test]
fn graphs_and_paths() {
    let text = "Pattern 4, crossNic 0, nChannels 2, bw 15.000000/0.5, type SYS/PIX, sameChannels 1";
    let Event::Graph { pattern, channels, bandwidth_inter, type_intra, .. } = meaning(text) else {
        panic!("{text}")
    };
    assert_eq!((pattern, channels, bandwidth_inter, type_intra), (4, 2, 0.5, "SYS"));
    let nodes = "GPU/0-17000 GPU/0-65000";
    assert_eq!(meaning(&format!(" 0 : {nodes}")), Event::GraphChannel { index: 0, nodes });
    let text = "GPU/0-1 :GPU/0-1 (0/5000.0/LOC) CPU/0-0 (1/24.000000/PHB) ";
    let to = vec![("GPU/0-1", 0, 5000.0, "LOC"), ("CPU/0-0", 1, 24.0, "PHB")];
    assert_eq!(meaning(text), Event::Paths { from: "GPU/0-1", to });
}

#[test]
fn channels_rings_trees_and_transports() {
    let ranks = vec![0, 3, 1];
    for text in ["Channel 07/24 : 0 3 1", "Channel 07/24 :    0   3   1"] {
        let expected = Event::Channel { index: 7, count: 24, ranks: ranks.clone() };
        assert_eq!(meaning(text), expected);
    }
    let ring = Event::Ring { index: 0, previous: 7, rank: 0, next: 1 };
    assert_eq!(meaning("Ring 00 : 7 -> 0 -> 1"), ring);
    let trees = Event::Trees(vec![(0, -1, [1, -1, -1]), (1, 2, [-1, -1, -1])]);
    assert_eq!(meaning("Trees [0] 1/-1/-1->0->-1 [1] -1/-1/-1->0->2"), trees);
    let cut = Event::Trees(vec![(0, -1, [1, -1, -1])]);
    assert_eq!(meaning("Trees [0] 1/-1/-1->0->-1 [1] -1/-1/-1->1-"), cut);
    let from = NcclRank { rank: 0, device: "0" };
    let to = NcclRank { rank: 1, device: "1b000" };
    let with = |connection, direction, via| Event::Transport {
        channel: 0,
        connection,
        from,
        to,
        direction,
        via,
    };
    let text = "Channel 00/1 : 0[0] -> 1[1b000] via P2P/direct pointer/read";
    assert_eq!(meaning(text), with(Some(1), None, "P2P/direct pointer/read"));
    let text = "Channel 00 : 0[0] -> 1[1b000] via SHM/direct/direct";
    assert_eq!(meaning(text), with(None, None, "SHM/direct/direct"));
    let text = "Channel 00/0 : 0[0] -> 1[1b000] [send] via NET/Socket/0";
    assert_eq!(meaning(text), with(Some(0), Some("send"), "NET/Socket/0"));
    let text = "24 coll channels, 16 nvls channels, 32 p2p channels, 31 p2p channels per peer";
    let counts =
        ChannelCounts { collective: 24, collnet: None, nvls: Some(16), p2p: 32, p2p_per_peer: 31 };
    assert_eq!(meaning(text), Event::Channels(counts));
    let thresholds = Event::Thresholds(vec![8, 8, 64, 16, 8, 64, 512, 512]);
    assert_eq!(meaning("threadThresholds 8/8/64 | 16/8/64 | 512 | 512"), thresholds);
}

#[test]
fn lines_around_init() {
    let text = "ncclCommInitRank comm 0x7f0 rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 65000 \
                commId 0x54fe - Init COMPLETE";
    let member = Member {
        comm: 0x7f0,
        rank: 1,
        ranks: 2,
        device: 1,
        bus_id: 0x65000,
        id: Some(0x54fe),
        complete: true,
    };
    assert_eq!(meaning(text), Event::Member(member));
    let text = "comm 0x7f0 rank 0 nRanks 8 nNodes 1 localRanks 8 localRank 0 MNNVL 0";
    assert_eq!(meaning(text), Event::Nodes { comm: 0x7f0, nodes: 1, local_ranks: 8 });
}

const MATRIX: &str = "
vm:1:2 [0] NCCL INFO Enabled NCCL Func/Proto/Algo Matrix:
     Function |       LL     LL128    Simple   |          Tree           Ring   | Symmetric
    AllReduce |        1         2         0   |             0              1   |  1
vm:1:2 [0] NCCL INFO   Algorithm   |            Tree        |            Ring    |
vm:1:2 [0] NCCL INFO   Protocol    |   LL |  LL128 | Simple |   LL |  LL128 | Simple |
vm:1:2 [0] NCCL INFO  Max NThreads |  512 |    640 |    512 |  256 |    640 |    513 |
vm:1:2 [0] NCCL INFO     AllReduce | 8.0/ 37.9 | 1.0/ 0.0 | 2.0/ -1.0 | 7.5/ 1.5 | 1.0/ 2.0 | 3.0/ 4.0 |
vm:1:2 [0] NCCL INFO Best tuning { .id = 3, .valid = 1, timeUs = 28.5,  .algo = RING, \
.proto = LL, nChannels = 24, maxChannels = 24, nWarps = 16, forced = 1 }
vm:1:2 [0] NCCL INFO AllReduce: 8 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}
";

#[test]
fn tables_are_put_together() {
    let ranks = collect(MATRIX.as_bytes());
    assert_eq!(ranks.len(), 1);
    let words = |all: &[&str]| all.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let row = ("AllReduce".to_owned(), words(&["LL", "LL128"]), words(&["Ring"]));
    assert_eq!(ranks[0].enabled, [row]);
    let cost = |at: usize| {
        let Cost { algorithm, protocol, bandwidth, max_threads, .. } = &ranks[0].costs[at];
        (&**algorithm, *protocol, *bandwidth, *max_threads)
    };
    assert_eq!(cost(2), ("Tree", "Simple", 0.0, Some(512)));
    assert_eq!(cost(3), ("Ring", "LL", 1.5, Some(256)));
    let choice = &ranks[0].choices[0];
    assert_eq!((&*choice.algorithm, &*choice.protocol), ("Ring", "LL"));
    assert_eq!((choice.time_us, choice.threads), (Some(28.5), Some(512)));
}

/// A log from the corpus, by the name of the file.
fn corpus(name: &str) -> Option<Vec<u8>> {
    let path = crate::virtual_node::testing::corpus(&format!("nccl-logs/{name}"))?;
    Some(std::fs::read(path).expect("it exists"))
}

#[test]
fn the_log_of_a_real_machine() {
    let Some(log) = corpus("a100x2-2.27.7.log") else { return };
    let ranks = collect(&log);
    assert_eq!(ranks.len(), 2, "{:?}", ranks.iter().map(|r| (&r.host, r.pid, r.device)));
    let [first, second] = &ranks[..] else { panic!("two devices of one process") };
    assert_eq!(first.version.as_deref(), Some("2.27.7+cuda13.0"));
    assert_eq!(second.member.map(|member| (member.rank, member.bus_id)), Some((1, 0x65000)));
    assert_eq!(first.nodes, Some((1, 2)));
    assert_eq!(
        first.env,
        [EnvLine { name: "NCCL_TOPO_DUMP_FILE".into(), value: "nccl_topo_dump.xml".into() }]
    );
    let graph = |graph: &Graph| (graph.pattern, graph.channels, graph.bandwidth_intra);
    assert_eq!(first.graphs.iter().map(graph).collect::<Vec<_>>(), [(4, 12, 20.0), (1, 12, 40.0)]);
    assert!(first.graphs.iter().all(|graph| graph.paths.len() == 12));
    assert_eq!((first.channels.len(), first.rings.len(), first.trees.len()), (24, 24, 24));
    assert_eq!(first.transports.len(), 24);
    assert!(first.transports.iter().all(|one| one.via == "P2P/direct pointer/read"));
    assert_eq!(first.counts.map(|counts| counts.collective), Some(24));
    let costs = first.costs.iter().filter(|cost| cost.function == "AllReduce");
    let costs: Vec<_> = costs.map(|cost| (cost.latency, cost.bandwidth)).take(6).collect();
    let expected =
        [(8.0, 37.9), (16.5, 112.0), (16.4, 144.0), (7.8, 87.7), (17.8, 220.8), (15.2, 240.0)];
    assert_eq!(costs, expected);
    assert_eq!(first.costs.len(), 5 * 7 * 3);
    assert_eq!(first.choices.len() + second.choices.len(), 495);
    let simple = |choice: &Choice| choice.algorithm == "Ring" && choice.protocol == "Simple";
    assert!(first.choices.iter().chain(&second.choices).all(simple));
    assert_eq!(first.problems, []);
}

#[test]
fn the_log_of_a_machine_whose_ranks_find_no_transport() {
    let Some(log) = corpus("msccl-2.23.4.log") else { return };
    let ranks = collect(&log);
    let own: Vec<_> = ranks.iter().filter(|rank| rank.member.is_some()).collect();
    assert_eq!(own.len(), 4, "{:?}", ranks.iter().map(|r| (&r.host, r.pid, r.device)));
    for rank in own {
        let text = &rank.problems[0].text;
        assert!(text.starts_with("No transport found for rank"), "{text}");
        assert!(rank.env.iter().any(|line| line.name == "NCCL_ALGO" && line.value == "MSCCL"));
    }
}

proptest! {
    #[test]
    fn hostile_text_does_not_panic(
        parts in proptest::collection::vec(prop_oneof![
            "[ -~]{0,12}",
            Just("h:1:2 [0] NCCL INFO ".to_owned()), Just("\n".to_owned()), Just("[".to_owned()),
            Just("Channel 00/".to_owned()), Just(" : 0[0] -> 1[".to_owned()),
            Just("] via ".to_owned()), Just(" | ".to_owned()), Just(" Bytes -> Algo ".to_owned()),
            Just("Trees [0] 1/-1/".to_owned()), Just("GPU/0 :".to_owned()),
            Just("Algorithm |".to_owned()), Just("-9999999999999999999".to_owned()),
            Just("comm 0x".to_owned()), Just(" - Init START".to_owned()),
            Just("Enabled NCCL Func/Proto/Algo Matrix:\n Function | a b c | d\n".to_owned()),
        ], 0..24),
        noise in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
    ) {
        let mut bytes = parts.concat().into_bytes();
        for (at, byte) in noise {
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
        }
        collect(&bytes);
    }

    #[test]
    fn a_prefix_comes_back(
        host in "[a-z0-9.-]{1,20}", pid in any::<u32>(), tid in any::<u32>(),
        device in -1i32..64, text in "[ -~]{0,60}",
    ) {
        let line = format!("{host}:{pid}:{tid} [{device}] NCCL INFO {text}");
        let line = one(&line);
        prop_assert_eq!(line.host, host.as_bytes());
        prop_assert_eq!((line.pid, line.tid, line.device), (pid, tid, device));
        prop_assert_eq!(line.text, text.as_bytes());
    }
}
