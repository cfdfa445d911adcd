//! Reads what `lscpu` prints in English: the processor, as NCCL would name it,
//! and which CPUs belong to which NUMA node.

use super::quoted;
use std::collections::{BTreeMap, BTreeSet};

/// Linux knows up to 8192 CPUs.
const MOST_CPUS: u32 = 8192;
/// NUMA nodes have up to 10 bits.
const MOST_NODES: u32 = 1024;
/// NCCL reads attributes of up to 254 bytes: 28 words of 8 digits and a comma.
const MOST_WORDS: usize = 28;

/// The processors of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Processors {
    /// `x86_64`, `arm64` or `ppc64`, NCCL's names.
    pub arch: String,
    /// `GenuineIntel` or the like.
    pub vendor: Option<String>,
    /// As Linux counts them, which is not how NCCL does.
    family: Option<u32>,
    model: Option<u32>,
    /// The CPUs of each NUMA node that has some.
    pub nodes: BTreeMap<u32, BTreeSet<u32>>,
}

impl Processors {
    /// Finds the output in a text; `None` when there is none.
    ///
    /// # Errors
    /// What does not fit in it, as a sentence.
    pub fn find(text: &str) -> Result<Option<Self>, String> {
        let mut found = Self::default();
        let (mut online, mut nodes) = (None, BTreeMap::new());
        for line in text.lines() {
            let Some((name, value)) = line.split_once(':') else { continue };
            let (name, value) = (name.trim(), value.trim());
            match name {
                "Architecture" => set(&mut found.arch, name, arch(value)?)?,
                "Vendor ID" if found.vendor.is_none() => found.vendor = Some(value.to_owned()),
                "CPU family" if found.family.is_none() => found.family = value.parse().ok(),
                "Model" if found.model.is_none() => found.model = value.parse().ok(),
                "On-line CPU(s) list" => online = Some(value),
                _ => node(name, value, &mut nodes)?,
            }
        }
        if found.arch.is_empty() {
            return Ok(None);
        }
        for (number, list) in nodes {
            found.nodes.insert(number, cpus(list)?);
        }
        if let (true, Some(list)) = (found.nodes.is_empty(), online) {
            // A kernel without NUMA.
            found.nodes.insert(0, cpus(list)?);
        }
        if found.nodes.is_empty() {
            return Err("lscpu does not list the CPUs of a NUMA node".into());
        }
        Ok(Some(found))
    }

    /// What distinguishes the processor for NCCL, as attributes of a `cpu`.
    /// NCCL (`xml.cc`) adds the extended family of CPUID, shifted by four bits,
    /// to the base family; Linux adds it as it is, and only to 15.
    pub fn attributes(&self) -> Vec<(&'static str, String)> {
        let mut all = vec![("arch", self.arch.clone())];
        if self.arch == "x86_64" {
            let family = self.family.unwrap_or(0).min(15 + 255);
            let extended = family.saturating_sub(15);
            all.push(("vendor", self.vendor.clone().unwrap_or_default()));
            all.push(("familyid", (family.min(15) + (extended << 4)).to_string()));
            all.push(("modelid", self.model.unwrap_or(0).to_string()));
        }
        all
    }

    /// The CPUs of a node as Linux writes masks: words of 32 bits, highest first.
    pub fn mask(&self, node: u32) -> String {
        let cpus = self.nodes.get(&node);
        let mut words = vec![0u32];
        for &cpu in cpus.into_iter().flatten() {
            let at = (cpu / 32) as usize;
            // More than NCCL can read; it only narrows where threads run.
            if at < MOST_WORDS {
                words.resize(words.len().max(at + 1), 0);
                words[at] |= 1 << (cpu % 32);
            }
        }
        let words: Vec<String> = words.iter().rev().map(|word| format!("{word:08x}")).collect();
        words.join(",")
    }

    /// What lscpu should have said about an x86 processor.
    pub fn missing(&self) -> Option<&'static str> {
        let x86 = self.arch == "x86_64";
        [
            (self.vendor.is_none(), "Vendor ID"),
            (self.family.is_none(), "CPU family"),
            (self.model.is_none(), "Model"),
        ]
        .into_iter()
        .find_map(|(missing, name)| (x86 && missing).then_some(name))
    }
}

/// `NUMA node1 CPU(s)`; nodes without CPUs hold memory only.
fn node<'a>(name: &str, list: &'a str, nodes: &mut BTreeMap<u32, &'a str>) -> Result<(), String> {
    let number = name.strip_prefix("NUMA node").and_then(|name| name.strip_suffix(" CPU(s)"));
    let number = number.and_then(|number| number.parse::<u32>().ok());
    match number {
        Some(number) if number >= MOST_NODES => Err(format!("lscpu has a NUMA node {number}")),
        Some(number) if !list.is_empty() => set(nodes.entry(number).or_default(), name, list),
        _ => Ok(()),
    }
}

/// Sets what may be there only once, or again with the same value.
fn set<T: PartialEq + Default>(to: &mut T, name: &str, value: T) -> Result<(), String> {
    if *to != T::default() && *to != value {
        return Err(format!("lscpu has {name:?} twice, with different values"));
    }
    *to = value;
    Ok(())
}

/// NCCL's name of an architecture.
fn arch(name: &str) -> Result<String, String> {
    Ok(match name {
        "x86_64" => "x86_64",
        "aarch64" => "arm64",
        "ppc64le" | "ppc64" => "ppc64",
        other => {
            let other = quoted(other);
            return Err(format!("lscpu names the architecture {other}, unknown to NCCL"));
        }
    }
    .into())
}

/// CPUs from a list such as `0-63,128-191`.
///
/// # Errors
/// What is no such list, as a sentence.
pub fn cpus(list: &str) -> Result<BTreeSet<u32>, String> {
    let bad = || format!("{} is no list of CPUs", quoted(list));
    let (mut all, mut listed) = (BTreeSet::new(), 0);
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.trim().parse().ok().filter(|&cpu| cpu < MOST_CPUS);
        let (first, last): (u32, u32) =
            (number(first).ok_or_else(bad)?, number(last).ok_or_else(bad)?);
        listed += last.saturating_sub(first) + 1;
        if first > last || listed > MOST_CPUS {
            return Err(bad());
        }
        all.extend(first..=last);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn processors(text: &str) -> Processors {
        Processors::find(text).expect("valid").expect("lscpu is there")
    }

    #[test]
    fn families_are_counted_as_nccl_counts_them() {
        for (vendor, family, model, expected) in [
            ("AuthenticAMD", 26, 2, "191"),
            ("AuthenticAMD", 25, 17, "175"),
            ("AuthenticAMD", 23, 49, "143"),
            ("GenuineIntel", 6, 143, "6"),
            ("GenuineIntel", 15, 4, "15"),
        ] {
            let text = format!(
                "Architecture: x86_64\nVendor ID: {vendor}\nCPU family: {family}\nModel: {model}\n\
                 NUMA node0 CPU(s): 0\n"
            );
            let attributes = processors(&text).attributes();
            assert_eq!(attributes[1].1, vendor);
            assert_eq!(attributes[2], ("familyid", expected.to_owned()));
            assert_eq!(attributes[3], ("modelid", model.to_string()));
        }
        let arm = processors("Architecture: aarch64\nOn-line CPU(s) list: 0-3\n");
        assert_eq!(arm.attributes(), [("arch", "arm64".to_owned())]);
        assert_eq!(arm.missing(), None);
    }

    #[test]
    fn masks_are_words_of_32_cpus() {
        let text = "Architecture: x86_64\nNUMA:\n  NUMA node0 CPU(s): 0-63,128-191\n  \
                    NUMA node1 CPU(s): 64-127,192-238,240-255\nNUMA node7 CPU(s):\n";
        let all = processors(text);
        assert_eq!(all.mask(0), "ffffffff,ffffffff,00000000,00000000,ffffffff,ffffffff");
        assert_eq!(
            all.mask(1),
            "ffff7fff,ffffffff,00000000,00000000,ffffffff,ffffffff,00000000,00000000"
        );
        assert_eq!(all.nodes.len(), 2);
        assert_eq!(all.missing(), Some("Vendor ID"));
        let huge = processors("Architecture: x86_64\nNUMA node0 CPU(s): 0-8191\n");
        assert!(huge.mask(0).len() < 255);
    }

    #[test]
    fn contradictions_are_named() {
        let refused = |text: &str| Processors::find(text).expect_err("it must be refused");
        let two = "Architecture: x86_64\nNUMA node0 CPU(s): 0-3\nNUMA node0 CPU(s): 0-7\n";
        assert!(refused(two).contains("twice"));
        assert!(refused("Architecture: sparc64\n").contains("sparc64"));
        assert!(refused("Architecture: x86_64\n").contains("NUMA node"));
        for list in ["3-1", "0-99999", "x", "1,,2", "-3", "0-8191,0-8191"] {
            let text = format!("Architecture: x86_64\nNUMA node0 CPU(s): {list}\n");
            assert!(refused(&text).contains("list of CPUs"), "{list}");
        }
        assert_eq!(Processors::find("hello: world\n"), Ok(None));
    }
}
