//! Machines as users name them: the real texts of the corpus, small ones made
//! here, and what does not fit together.

use super::*;
use crate::virtual_node::testing::corpus;
use proptest::prelude::*;
use std::fmt::Write as _;

const LSCPU: &str = "Architecture: x86_64\nVendor ID: AuthenticAMD\nCPU family: 26\nModel: 2\n\
                     NUMA node0 CPU(s): 0-63\nNUMA node1 CPU(s): 64-127\n";

fn texts(text: &str, gpu: Option<&str>) -> Result<(Topology, Model), TopologyError> {
    Topology::from_texts(text, Path::new("test"), gpu)
}

/// With the processors of two sockets.
fn machine(matrix: &str, gpu: &str) -> Topology {
    let (topology, _) =
        texts(&(matrix.to_owned() + LSCPU), Some(gpu)).unwrap_or_else(|error| panic!("{error}"));
    topology
}

fn refused(matrix: &str, gpu: &str) -> String {
    texts(&(matrix.to_owned() + LSCPU), Some(gpu)).expect_err("it must be refused").to_string()
}

/// A matrix of these levels (without `X`) and NUMA nodes.
fn matrix(levels: &[&str], nodes: &[&str]) -> String {
    let names: Vec<String> = (0..nodes.len()).map(|gpu| format!("GPU{gpu}")).collect();
    let mut text = format!("\t{}\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n", names.join("\t"));
    for ((row, node), name) in levels.iter().zip(nodes).zip(names) {
        let _ = writeln!(text, "{name}\t{}\t\t{node}\t\tN/A", row.replace(' ', "\t"));
    }
    text
}

/// The path of each element, such as `cpu/pci/gpu`, in order.
fn shape(topology: &Topology) -> Vec<String> {
    let mut reader = quick_xml::Reader::from_str(&topology.text);
    let (mut path, mut all) = (Vec::new(), Vec::new());
    loop {
        match reader.read_event().expect("our own XML") {
            quick_xml::events::Event::Start(start) => {
                path.push(String::from_utf8_lossy(start.name().as_ref()).into_owned());
                if path.last().is_some_and(|name| name == "gpu") {
                    all.push(path[1..].join("/"));
                }
            }
            quick_xml::events::Event::End(_) => drop(path.pop()),
            quick_xml::events::Event::Eof => return all,
            _ => {}
        }
    }
}

fn real(name: &str) -> Option<OsString> {
    Some(corpus(&format!("host-rtxpro6000x8/{name}"))?.into_os_string())
}

#[test]
fn the_texts_of_a_real_machine_become_its_topology() {
    let (Some(topo), Some(lscpu), Some(query)) =
        (real("nvidia_topo.log"), real("lscpu.log"), real("nvidia_smi_full.log"))
    else {
        return;
    };
    let parts = [topo, lscpu, query];
    let (topology, model) = Topology::named(&parts, None).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(model.key, "rtxpro6000");
    assert_eq!(topology.gpus.len(), 8);
    assert_eq!(topology.gpus[0].bus, "0000:06:00.0");
    assert_eq!(topology.gpus[0].device, Some(0x2bb5));
    assert_eq!(shape(&topology), ["cpu/pci/pci/gpu"; 8]);
    assert_eq!(topology.text.matches("0x060400").count(), 4);
    assert_eq!(topology.text.matches("<cpu ").count(), 2);
    assert!(topology.text.contains("familyid=\"191\" modelid=\"2\""), "{}", topology.text);
    assert_eq!(
        topology.notes,
        ["NODE is PHB to NCCL, which does not tell host bridges apart"],
        "nothing is assumed"
    );
}

#[test]
fn what_the_texts_do_not_say_comes_from_the_model_and_is_said() {
    let (Some(topo), Some(lscpu)) = (real("nvidia_topo.log"), real("lscpu.log")) else { return };
    let parts = [topo, lscpu];
    let error = Topology::named(&parts, None).expect_err("which GPUs?").to_string();
    assert!(error.contains("--gpu"), "{error}");
    let (topology, _) = Topology::named(&parts, Some("rtxpro6000")).expect("it is enough");
    let notes = topology.notes.join("\n");
    assert!(notes.contains("PCIe 5.0 x16 is assumed"), "{notes}");
    assert!(notes.contains("addresses are invented"), "{notes}");
    assert!(topology.text.contains("32.0 GT/s PCIe"));
    let error = Topology::named(&parts[..1], Some("h100")).expect_err("no CPUs").to_string();
    assert!(error.contains("lscpu"), "{error}");
    let error = Topology::named(&parts[1..], Some("h100")).expect_err("no matrix").to_string();
    assert!(error.contains("nvidia-smi topo -m"), "{error}");
}

#[test]
fn the_model_must_not_contradict_the_texts() {
    let card = |name: &str| format!("GPU 00000000:01:00.0\n    Product Name : {name}\n");
    let text = matrix(&["X"], &["0"]) + LSCPU + &card("NVIDIA H100 80GB HBM3");
    let (topology, model) = texts(&text, None).expect("known by its name");
    assert_eq!((model.key.as_str(), topology.gpus[0].sm), ("h100", Some(90)));
    let (topology, model) = texts(&text, Some("h200")).expect("what if");
    assert_eq!(model.key, "h200");
    assert!(topology.notes[0].contains("is of NVIDIA H100"), "{:?}", topology.notes);
    let error = texts(&text, Some("a100")).expect_err("sm 80 is not 90").to_string();
    assert!(error.contains("compute capability 90"), "{error}");
    let text = matrix(&["X"], &["0"]) + LSCPU + &card("NVIDIA L40S");
    let error = texts(&text, None).expect_err("not known").to_string();
    assert!(error.contains("L40S") && error.contains("--gpu"), "{error}");
    assert!(texts(&text, Some("rtx4090")).is_ok());
    let two = card("A") + &card("B").replace("01:", "02:");
    let text = matrix(&["X PHB", "PHB X"], &["0", "0"]) + LSCPU + &two;
    assert!(texts(&text, None).expect_err("two models").to_string().contains("one model"));
}

#[test]
fn a_model_that_an_xml_does_not_name_is_noted() {
    let text = presets::find("h100x8").expect("a preset").text;
    let xml = |device: &str| {
        let text = text.replace("device=\"0x2330\"", device);
        Topology::parse(&text, Path::new("test")).expect("valid")
    };
    for (device, gpu, expected) in [
        ("device=\"0x2330\"", None, None),
        ("device=\"0x2330\"", Some("h100"), None),
        ("device=\"0x2330\"", Some("h200"), Some("is of NVIDIA H100 80GB HBM3")),
        ("device=\"0x1234\"", None, Some("10de:1234")),
        ("", None, Some("does not name its GPU model")),
        ("", Some("h200"), None),
    ] {
        let (topology, _) = xml(device).with_model(gpu).expect("sm 90");
        let note = topology.notes.first().map(String::as_str);
        let fits = match expected {
            Some(part) => note.is_some_and(|note| note.contains(part)),
            None => note.is_none(),
        };
        assert!(fits, "{device} {gpu:?}: {note:?}");
    }
    assert!(xml("").with_model(Some("b200")).is_err());
}

#[test]
fn levels_become_switches_and_nodes() {
    for (levels, nodes, expected) in [
        (&["X SYS", "SYS X"][..], &["0", "1"][..], &["cpu/pci/gpu", "cpu/pci/gpu"][..]),
        (&["X PHB", "PHB X"], &["0", "0"], &["cpu/pci/gpu", "cpu/pci/gpu"]),
        (&["X PIX", "PIX X"], &["1", "1"], &["cpu/pci/pci/gpu", "cpu/pci/pci/gpu"]),
        (&["X PXB", "PXB X"], &["1", "1"], &["cpu/pci/pci/pci/gpu", "cpu/pci/pci/pci/gpu"]),
        (
            &["X PIX PXB NODE", "PIX X PXB NODE", "PXB PXB X NODE", "NODE NODE NODE X"],
            &["0"; 4],
            &["cpu/pci/pci/pci/gpu", "cpu/pci/pci/pci/gpu", "cpu/pci/pci/pci/gpu", "cpu/pci/gpu"],
        ),
    ] {
        let topology = machine(&matrix(levels, nodes), "rtxpro6000");
        assert_eq!(shape(&topology), expected, "{levels:?}: {}", topology.text);
    }
    // The bridge hides how GPU0 and GPU1 are connected, but not how GPU2 is.
    let bridged = ["X NV12 PIX", "NV12 X PIX", "PIX PIX X"];
    let topology = machine(&matrix(&bridged, &["0"; 3]), "a100-pcie");
    assert_eq!(shape(&topology), ["cpu/pci/pci/gpu"; 3]);
    assert_eq!(topology.text.matches("0x060400").count(), 1);
}

#[test]
fn nvlinks_lead_to_gpus_or_to_switches() {
    let switched = ["X NV18 NV18", "NV18 X NV18", "NV18 NV18 X"];
    let topology = machine(&matrix(&switched, &["0", "0", "1"]), "h100");
    assert!(topology.switched());
    assert_eq!(topology.gpus[2].links, Some(18));
    let fewer = ["X NV8 NV8 NV8", "NV8 X NV8 NV8", "NV8 NV8 X NV8", "NV8 NV8 NV8 X"];
    let topology = machine(&matrix(&fewer, &["0"; 4]), "h100");
    assert_eq!((topology.switched(), topology.gpus[0].links), (true, Some(8)));
    let direct = ["X NV4 NV4 NV4", "NV4 X NV4 NV4", "NV4 NV4 X NV4", "NV4 NV4 NV4 X"];
    let topology = machine(&matrix(&direct, &["0", "0", "1", "1"]), "a100");
    assert_eq!((topology.switched(), topology.gpus[0].links), (false, Some(12)));
    let bridge = matrix(&["X NV12", "NV12 X"], &["0", "0"]);
    let topology = machine(&bridge, "a100-pcie");
    assert_eq!((topology.switched(), topology.gpus[1].links), (false, Some(12)));
    assert!(topology.text.contains("<nvlink target=\"0001:02:00.0\" count=\"12\""));
    assert!(refused(&bridge, "rtxpro6000").contains("has no NVLink"));
    let many = matrix(&["X NV64", "NV64 X"], &["0", "0"]);
    assert!(refused(&many, "a100-pcie").contains("64 NVLinks"), "{}", refused(&many, "a100-pcie"));
}

#[test]
fn what_drivers_print_of_odd_machines_is_taken_with_a_note() {
    let all_sys = matrix(&["X SYS", "SYS X"], &["0", "0"]);
    let topology = machine(&all_sys, "rtx4090");
    assert!(topology.notes.join("\n").contains("SYS in the matrix and at NUMA nodes 0 and 0"));
    let across = matrix(&["X NODE", "NODE X"], &["0", "1"]);
    assert!(machine(&across, "rtx4090").notes.join("\n").contains("nodes 0 and 1"));
    assert!(refused(&matrix(&["X PIX", "PIX X"], &["0", "1"]), "rtx4090").contains("one PCIe"));
}

#[test]
fn other_layouts_are_read() {
    // Blanks, network cards, no CPUs near one GPU, as in a job with few CPUs.
    let job = "\
        GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      NODE    NODE    0-15            0               N/A
GPU1    NODE     X      PHB                     1               N/A
NIC0    NODE    PHB      X

Legend:
  X    = Self
";
    let topology = machine(job, "rtx4090");
    assert_eq!(topology.text.matches("<cpu ").count(), 2);
    assert!(topology.notes[0].contains("1 network cards"), "{:?}", topology.notes);
    // Old: other words, no NUMA column; another matrix after it.
    let old = "\
\tGPU0\tGPU1\tmlx5_0\tCPU Affinity
GPU0\t X \tPSB\tSOC\t64-127
GPU1\tPSB\t X \tSOC\t64-127
mlx5_0\tSOC\tSOC\t X

 \tGPU0\tGPU1\t
 GPU0\tX\tGNS\t
 GPU1\tGNS\tX\t
";
    let topology = machine(old, "rtx4090");
    assert!(topology.text.contains("numaid=\"1\""), "{}", topology.text);
    assert_eq!(topology.text.matches("0x060400").count(), 1);
    let underlined = matrix(&["X"], &["0"]).replace("GPU0\tCPU", "\u{1b}[4mGPU0\tCPU");
    assert_eq!(machine(&underlined, "h100").gpus.len(), 1);
}

#[test]
fn contradictions_in_a_matrix_are_named() {
    let one = |levels: &[&str], nodes: &[&str]| refused(&matrix(levels, nodes), "h100");
    assert!(one(&["X SYS", "PHB X"], &["0", "1"]).contains("not symmetric"));
    assert!(one(&["SYS SYS", "SYS X"], &["0", "1"]).contains("between GPU0 and GPU0"));
    assert!(one(&["X X", "X X"], &["0", "1"]).contains("between GPU0 and GPU1"));
    assert!(one(&["X SYS"], &["0", "1"]).contains("not square"));
    assert!(one(&["X", "X"], &["0", "1"]).contains("no level"));
    assert!(one(&["X NV99", "NV99 X"], &["0", "0"]).contains("no level"));
    assert!(one(&["X OK", "OK X"], &["0", "0"]).contains("no level"));
    assert!(one(&["X"], &["7"]).contains("NUMA node 7"));
    let twisted = ["X PIX PIX", "PIX X PHB", "PIX PHB X"];
    assert!(one(&twisted, &["0"; 3]).contains("more closely"));
    let two = matrix(&["X"], &["0"]).repeat(2);
    assert!(refused(&two, "h100").contains("two matrices"));
    let far = matrix(&["X"], &["0"]).replace("X\t\t0", "X\t64-127\t0");
    assert!(refused(&far, "h100").contains("different machines"));
    let cards = "GPU 00000000:01:00.0\nGPU 00000000:02:00.0\n";
    assert!(refused(&(matrix(&["X"], &["0"]) + cards), "h100").contains("different machines"));
}

#[test]
fn names_that_are_nothing_are_answered_with_what_there_is() {
    let one = |name: &str| Topology::named(&[name.into()], None).expect_err("nothing").to_string();
    assert!(one("h1000x8").contains("rtxpro6000x8-pairs"), "{}", one("h1000x8"));
    let both = Topology::named(&["h100x8".into(), "h200x8".into()], None).expect_err("two");
    assert!(both.to_string().contains("stands alone"));
    assert!(Topology::named(&[], None).is_err());
    let folder = tempfile::tempdir().expect("temp folder");
    let file = |text: &str| {
        let path = folder.path().join("file");
        std::fs::write(&path, text).expect("space for it");
        Topology::named(&[path.into()], Some("h100")).map_err(|error| error.to_string())
    };
    assert!(file("hello").expect_err("no topology").contains("NCCL_TOPO_DUMP_FILE"));
    assert!(file("<nvidia_smi_log/>").expect_err("wrong XML").contains("topo -m"));
    let plain = presets::find("h100x8").expect("a preset").text;
    assert!(file(&format!("\u{feff}\n<?xml version=\"1.0\"?>{plain}")).is_ok());
}

#[test]
fn presets_load_with_a_model_and_without_assumptions() {
    for preset in presets::all() {
        let (topology, model) = Topology::named(&[preset.name.into()], None)
            .unwrap_or_else(|error| panic!("{}: {error}", preset.name));
        assert!(preset.name.starts_with(model.key.trim_end_matches("-pcie")), "{}", preset.name);
        assert_eq!(topology.notes, Vec::<String>::new(), "{}", preset.name);
        let board = preset.name.split('-').next().unwrap_or_default();
        let count = board.rsplit('x').next().and_then(|count| count.parse().ok());
        assert_eq!(Some(topology.gpus.len()), count, "{}", preset.name);
        assert_eq!(topology.gpus[0].device, model.devices.first().copied(), "{}", preset.name);
    }
}

/// Two NUMA nodes, switches of two or three cards in each.
fn any_matrix() -> impl Strategy<Value = (Vec<u32>, Vec<usize>)> {
    proptest::collection::vec((0u32..2, 0usize..3), 1..12).prop_map(|places| {
        let nodes = places.iter().map(|(node, _)| *node).collect();
        let switches = places.iter().map(|(node, switch)| *node as usize * 3 + switch).collect();
        (nodes, switches)
    })
}

proptest! {
    #[test]
    fn a_generated_machine_keeps_its_shape((nodes, switches) in any_matrix()) {
        let level = |a: usize, b: usize| match () {
            () if a == b => "X",
            () if switches[a] == switches[b] => "PIX",
            () if nodes[a] == nodes[b] => "PHB",
            () => "SYS",
        };
        let all = 0..nodes.len();
        let rows: Vec<String> = all.clone()
            .map(|a| all.clone().map(|b| level(a, b)).collect::<Vec<_>>().join(" ")).collect();
        let rows: Vec<&str> = rows.iter().map(String::as_str).collect();
        let names: Vec<String> = nodes.iter().map(u32::to_string).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let topology = machine(&matrix(&rows, &names), "rtxpro6000");
        prop_assert_eq!(topology.gpus.len(), nodes.len());
        let shared = |a: usize| all.clone().filter(|&b| switches[a] == switches[b]).count() > 1;
        let below = all.clone().filter(|&a| shared(a)).count();
        let found = shape(&topology).iter().filter(|path| *path == "cpu/pci/pci/gpu").count();
        prop_assert_eq!(found, below, "{}", &topology.text);
        let mut sorted = nodes.clone();
        sorted.sort_unstable();
        sorted.dedup();
        prop_assert_eq!(topology.text.matches("<cpu ").count(), sorted.len());
    }

    #[test]
    fn no_text_panics(text in ".{0,400}") {
        let _ = texts(&text, Some("h100"));
    }

    #[test]
    fn no_mix_of_the_right_words_panics(
        words in proptest::collection::vec(
            prop::sample::select(vec![
                "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\n", "GPU0\t", "GPU1\t", " X \t", "PIX\t", "NV18\t", "SYS\t",
                "0-63\t", "0\t", "\n", "GPU 0000:01:00.0\n", "    Device Id : 0x233010DE\n", "CPU Affinity",
                "Architecture: x86_64\nVendor ID: A\nCPU family: 6\nModel: 1\n", "NUMA node0 CPU(s): 0-63\n",
                "    Link Width\n        Max : 16x\n", "| 0 NVIDIA H100 On | 0000:01:00.0 Off |\n", "\u{1b}[4m",
            ]),
            0..40,
        )
    ) {
        let _ = texts(&words.concat(), Some("h100"));
        let _ = texts(&words.concat(), None);
    }
}
