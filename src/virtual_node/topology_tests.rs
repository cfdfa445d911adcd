//! Topologies: every file of the corpus, and what a hostile file may try.

use super::*;
use crate::virtual_node::testing::corpus;
use proptest::prelude::*;

fn parse(text: &str) -> Result<Topology, TopologyError> {
    Topology::parse(text, Path::new("test.xml"))
}

fn refused(text: &str) -> String {
    parse(text).expect_err("it must be refused").to_string()
}

/// A GPU whose number is the last digit of its bus.
fn gpu(bus: &str, inside: &str) -> String {
    let dev = u32::from_str_radix(&bus[6..7], 16).expect("a digit");
    format!(
        "<pci busid=\"{bus}\" class=\"0x030200\"><gpu dev=\"{dev}\" sm=\"90\">{inside}</gpu></pci>"
    )
}

fn system(inside: &str) -> String {
    format!("<system version=\"1\"><cpu numaid=\"0\">{inside}</cpu></system>")
}

/// How many GPUs, or a part of the reason.
const CORPUS: [(&str, Result<usize, &str>); 15] = [
    ("a100x2-pcie.xml", Ok(2)),
    ("aws-g5-48xl.xml", Err("lists no GPU")),
    ("aws-p4d.xml", Ok(8)),
    ("azure-ndv4.xml", Ok(8)),
    ("azure-ndv5.xml", Ok(8)),
    ("handmade-a100-nvswitch.xml", Ok(8)),
    ("handmade-b200-nvswitch.xml", Ok(8)),
    ("handmade-h100-nvswitch.xml", Ok(8)),
    ("handmade-rtx4090.xml", Ok(8)),
    ("handmade-rtxpro6000-2socket.xml", Ok(8)),
    ("handmade-rtxpro6000-pcieswitch.xml", Ok(8)),
    ("l20.xml", Ok(16)),
    ("oci-flattened.xml", Ok(8)),
    ("oci-h100.xml", Ok(8)),
    ("rtx4090x4.xml", Ok(4)),
];

#[test]
fn every_topology_of_the_corpus_loads_or_is_refused_with_a_reason() {
    for (name, expected) in CORPUS {
        let Some(path) = corpus(&format!("topologies/{name}")) else { return };
        match (Topology::open(&path), expected) {
            (Ok(topology), Ok(gpus)) => assert_eq!(topology.gpus.len(), gpus, "{name}"),
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{name}: {error}"),
            (other, expected) => panic!("{name}: {other:?}, expected {expected:?}"),
        }
    }
}

#[test]
fn models_follow_from_what_a_topology_says() {
    for (name, expected) in [
        ("a100x2-pcie.xml", Some("a100-pcie")),
        ("handmade-a100-nvswitch.xml", Some("a100")),
        ("handmade-b200-nvswitch.xml", Some("b200")),
        ("handmade-rtx4090.xml", Some("rtx4090")),
        ("oci-h100.xml", Some("h100")),
        ("azure-ndv5.xml", None),
    ] {
        let Some(path) = corpus(&format!("topologies/{name}")) else { return };
        let topology = Topology::open(&path).expect("it loads");
        let model = topology.model(None).ok().map(|model| model.key);
        assert_eq!(model.as_deref(), expected, "{name}");
    }
}

#[test]
fn links_and_switches_are_counted() {
    let link = "<nvlink target=\"0000:05:00.0\" count=\"9\" tclass=\"0x068000\"/>".repeat(2);
    let one = parse(&system(&gpu("0000:1b:00.0", &link))).expect("valid");
    assert_eq!((one.gpus[0].links, one.switched()), (Some(18), true));
    let bridge = "<nvlink target=\"0000:05:00.0\" count=\"12\" tclass=\"0x030200\"/>";
    let two = parse(&system(&gpu("0000:1b:00.0", bridge))).expect("valid");
    assert_eq!((two.gpus[0].links, two.switched()), (Some(12), false));
    let none = parse(&system(&gpu("0000:1b:00.0", ""))).expect("valid");
    assert_eq!((none.gpus[0].links, none.switched()), (Some(0), false));
}

#[test]
fn hostile_texts_are_refused() {
    let bomb = format!(
        "<!DOCTYPE x [<!ENTITY a \"{}\"><!ENTITY b \"&a;&a;\">]>{}",
        "A".repeat(1000),
        system(&gpu("0000:1b:00.0", ""))
    );
    assert!(refused(&bomb).contains("document type"), "{}", refused(&bomb));
    assert!(refused(&system("<pci busid=\"&#x41;\"/>")).contains("entity"));
    let deep = "<x>".repeat(100_000);
    assert!(refused(&format!("<system version=\"1\">{deep}")).contains("levels"));
    let many = "<x/>".repeat(20_000);
    assert!(refused(&system(&many)).contains("elements"));
    let gpus: String =
        (0..65).map(|n| format!("<pci busid=\"{n:04x}:00:00.0\" class=\"0x03\"/>")).collect();
    assert!(refused(&system(&gpus)).contains("65 GPUs"));
    let twice = gpu("0000:1b:00.0", "") + &gpu("0000:1B:00.0", "");
    assert!(refused(&system(&twice)).contains("twice"));
    let itself = "<nvlink target=\"0000:1b:00.0\" count=\"1\" tclass=\"0x030200\"/>";
    assert!(refused(&system(&gpu("0000:1b:00.0", itself))).contains("itself"));
    let count = "<nvlink target=\"0000:1c:00.0\" count=\"99999999999\"/>";
    assert!(refused(&system(&gpu("0000:1b:00.0", count))).contains("count"));
    let long = format!("<pci busid=\"{}\"/>", "1".repeat(300));
    assert!(refused(&system(&long)).contains("longer"));
    for broken in ["", "x", "<system>", "<system/>", "<graphs/>", "<system></cpu>", "<system a=1/>"]
    {
        assert!(parse(broken).is_err(), "{broken}");
    }
    for odd in ["<a<?b/>", "<a b=\"<?\"/>", "<a!/>", "<a b<c=\"1\"/>", "<a b='\"'/>"] {
        assert!(parse(&system(&(odd.to_owned() + &gpu("0000:1b:00.0", "")))).is_err(), "{odd}");
    }
    let dev = gpu("0000:1b:00.0", "") + &gpu("0000:2b:00.0", "");
    assert!(refused(&system(&dev)).contains("same dev"));
}

#[test]
fn only_small_regular_files_are_read() {
    let folder = tempfile::tempdir().expect("temp folder");
    assert!(Topology::open(folder.path()).is_err());
    assert!(Topology::open(Path::new("/dev/zero")).is_err());
    let large = folder.path().join("large.xml");
    std::fs::write(&large, vec![b' '; (MOST_BYTES + 1) as usize]).expect("space for it");
    assert!(Topology::open(&large).expect_err("too large").to_string().contains("1 MiB"));
}

proptest! {
    #[test]
    fn no_text_panics(text in ".{0,400}") {
        let _ = parse(&text);
    }

    #[test]
    fn no_mix_of_the_right_words_panics(
        words in proptest::collection::vec(
            prop::sample::select(vec![
                "<system>", "</system>", "<cpu numaid=\"0\">", "</cpu>", "<pci busid=\"0000:1b:00.0\" class=\"0x03\">",
                "</pci>", "<gpu dev=\"0\" sm=\"90\">", "</gpu>", "<nvlink target=\"a\" count=\"3\"/>", "<gpu/>", "&amp;",
            ]),
            0..40,
        )
    ) {
        let _ = parse(&words.concat());
    }
}

/// NCCL's parser stops at a tab, a declaration and text, and some of its versions
/// at comments; a single quote within double ones is no problem.
#[test]
fn nccl_gets_a_text_that_it_can_read() {
    let plain = parse(&system(&gpu("0000:1b:00.0", ""))).expect("valid");
    let odd = system(&gpu("0000:1b:00.0", ""))
        .replace("<cpu numaid=\"0\">", "<!-- one\n\tnode -->\n\t<cpu\n\tnumaid = '0' >")
        .replace(" dev=", "\r\n\t dev=");
    let odd = parse(&format!("\u{feff}<?xml version=\"1.0\"?>\n{odd}\n")).expect("valid");
    assert_eq!(odd.text, plain.text);
    assert_eq!(odd.gpus, plain.gpus);
}

#[test]
fn what_nccl_would_misread_is_refused() {
    let one = gpu("0000:1b:00.0", "");
    for (text, part) in [
        (format!("<system>{one}</system>"), "version"),
        (format!("<system version=\"2\"><cpu>{one}</cpu></system>"), "version=\"2\""),
        (format!("<system version=\"1\">{one}</system>"), "neither in a <cpu>"),
        (system(&format!("<box>{one}</box>")), "neither in a <cpu>"),
        (system(&format!("<cpu numaid=\"1\">{one}</cpu>")), "not directly in <system>"),
        (system(&one.replace("<gpu", "<pci busid=\"0000:1c:00.0\" class=\"0x03\"/><gpu")), "below"),
        (system(&one.replace("class=\"0x030200\"", "")), "display class"),
        (system(&(one.clone() + "<pci busid=\"0000:1c:00.0\"/>")), "no class"),
        (system(&format!("text{one}")), "text between"),
        (system(&one.replace("sm=\"90\"", "sm=\"-90\"")), "sm=\"-90\""),
        (system(&one.replace("sm=\"90\"", "sm=\"99999999999\"")), "no number"),
        (system(&one).replace("numaid=\"0\"", "numaid=\"x\""), "numaid=\"x\""),
        (system(&one).replace("</system>", "<cpu numaid=\"0\"/></system>"), "twice"),
        (
            system(&one)
                .replace("numaid=\"0\"", "numaid=\"0\" host_hash=\"0x1\"")
                .replace("</system>", "<cpu numaid=\"1\" host_hash=\"0x2\"/></system>"),
            "several machines",
        ),
        (system(&(one.clone() + &"<x/>".repeat(700))), "elements inside"),
        (system(&one.repeat(2)).replacen("1b", "1c", 1), "same dev"),
    ] {
        let why = refused(&text);
        assert!(why.contains(part), "{part}: {why}");
    }
}

#[test]
fn what_nccl_fills_in_by_itself_is_noted() {
    let link = "<nvlink target=\"0000:99:00.0\" count=\"4\" tclass=\"0x030200\"/>";
    let notes = parse(&system(&gpu("0000:1b:00.0", link))).expect("valid").notes.join("\n");
    for part in ["1 addresses", "takes this machine's", "link_speed"] {
        assert!(notes.contains(part), "{part}: {notes}");
    }
}

#[test]
fn attributes_are_changed_in_each_element_of_a_name_and_nothing_else() {
    let values = [("vendor", "B"), ("modelid", "9")];
    let text = "<system version=\"1\">\n<cpu numaid=\"0\" vendor=\"A\" modelid=\"2\">\n<pci \
                vendor=\"x\"/>\n</cpu>\n<cpu numaid=\"1\" vendor=\"B\" modelid=\"9\"/>\n</system>\n";
    let changed = xml::with_attributes(text, "cpu", &values).expect("they are there");
    assert_eq!(changed, text.replace("\"A\" modelid=\"2\"", "\"B\" modelid=\"9\""));
    assert_eq!(xml::with_attributes(&changed, "cpu", &values), None, "all have them already");
    assert_eq!(xml::with_attributes(text, "net", &values), None, "there is none");
    assert_eq!(xml::with_attributes(text, "pci", &values), None, "one lacks modelid");
    assert_eq!(xml::with_attributes("<cpu", "cpu", &values), None);
}
