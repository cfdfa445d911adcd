//! Makes NCCL's topology XML of what other tools say about a machine: where each
//! GPU hangs, and its NVLinks. What NCCL cannot know from them is taken from the
//! GPU model and said in a note; what contradicts itself is an error.
//!
//! NCCL has fewer levels than `nvidia-smi`. It sees a tree of PCI switches below
//! each NUMA node, and calls a path `PIX` through one switch, `PXB` through
//! several, `PHB` through the node and `SYS` from node to node (`paths.cc`).
//! So `NODE` and `PHB` are the same to it: both hang at the node.

use super::super::models::Model;
use super::super::xml::SWITCH_CLASS;
use super::cards::Card;
use super::lscpu::{Processors, cpus};
use super::matrix::{Level, Matrix};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The address of what has none, in a domain that no machine has.
const SWITCH: &str = "ffff:ff:1f.7";
/// A GPU without an address gets one of its own here: a domain that machines
/// without virtual PCI buses do not have.
const DOMAIN: &str = "0001";

/// The texts of one machine, read.
pub struct Parts {
    /// `nvidia-smi topo -m`.
    pub matrix: Matrix,
    /// `lscpu`.
    pub processors: Processors,
    /// `nvidia-smi -q` or its like; empty when there is none.
    pub cards: Vec<Card>,
}

/// The XML, and what had to be assumed.
///
/// # Errors
/// What contradicts itself, as a sentence.
pub fn build(parts: &Parts, model: &Model) -> Result<(String, Vec<String>), String> {
    let mut builder = Builder { parts, model, nodes: nodes(parts)?, notes: Vec::new(), bridges: 0 };
    builder.check()?;
    let links = builder.links()?;
    let mut text = String::from("<system version=\"1\">\n");
    for node in parts.processors.nodes.keys() {
        let members: Vec<usize> =
            (0..builder.nodes.len()).filter(|&gpu| builder.nodes[gpu] == *node).collect();
        if !members.is_empty() {
            builder.node(*node, &members, &links, &mut text)?;
        }
    }
    text += "</system>\n";
    builder.remark();
    Ok((text, builder.notes))
}

/// The NUMA node of each GPU.
fn nodes(parts: &Parts) -> Result<Vec<u32>, String> {
    let known = &parts.processors.nodes;
    let one = |(gpu, place): (usize, &super::matrix::Place)| {
        let near = place.cpus.as_deref().map(cpus).transpose()?;
        let by_cpus = || {
            let first = near.as_ref()?.first()?;
            known.iter().find(|(_, cpus)| cpus.contains(first)).map(|(node, _)| *node)
        };
        let only = || known.keys().next().copied().filter(|_| known.len() == 1);
        let node = place.node.or_else(by_cpus).or_else(only).ok_or_else(|| {
            format!(
                "GPU{gpu} has neither a NUMA node nor CPUs in the matrix, and lscpu has {} nodes",
                known.len()
            )
        })?;
        let own = known.get(&node).ok_or_else(|| {
            format!("GPU{gpu} is at NUMA node {node}, which lscpu does not have (or without CPUs)")
        })?;
        match near {
            Some(near) if near.is_disjoint(own) => Err(format!(
                "GPU{gpu} is near CPUs {} in the matrix, and none of them is in NUMA node {node} \
                 of lscpu: the texts are of different machines",
                place.cpus.as_deref().unwrap_or_default()
            )),
            _ => Ok(node),
        }
    };
    parts.matrix.places.iter().enumerate().map(one).collect()
}

struct Builder<'a> {
    parts: &'a Parts,
    model: &'a Model,
    nodes: Vec<u32>,
    notes: Vec<String>,
    bridges: u32,
}

impl Builder<'_> {
    fn level(&self, a: usize, b: usize) -> Level {
        self.parts.matrix.levels[a][b]
    }

    fn card(&self, gpu: usize) -> Option<&Card> {
        self.parts.cards.get(gpu)
    }

    fn pairs(&self) -> impl Iterator<Item = (usize, usize, Level)> + '_ {
        let gpus = self.nodes.len();
        (0..gpus).flat_map(move |a| (a + 1..gpus).map(move |b| (a, b, self.level(a, b))))
    }

    fn check(&self) -> Result<(), String> {
        let (cards, gpus) = (self.parts.cards.len(), self.nodes.len());
        if cards != 0 && cards != gpus {
            return Err(format!(
                "the matrix has {gpus} GPUs and the other output of nvidia-smi {cards}: they are \
                 of different machines"
            ));
        }
        for (a, b, level) in self.pairs() {
            if self.nodes[a] != self.nodes[b] && matches!(level, Level::Pix | Level::Pxb) {
                return Err(format!(
                    "GPU{a} and GPU{b} are below one PCIe switch ({level}), but at NUMA nodes {} \
                     and {}",
                    self.nodes[a], self.nodes[b]
                ));
            }
        }
        match self.parts.processors.missing() {
            Some(name) => {
                Err(format!("lscpu has no line {name:?}, on which NCCL's bandwidths depend"))
            }
            None => Ok(()),
        }
    }

    /// The `nvlink` elements of each GPU.
    fn links(&mut self) -> Result<Vec<String>, String> {
        let gpus = self.nodes.len();
        let counts: Vec<u32> = self.pairs().filter_map(|(_, _, level)| links_of(level)).collect();
        let Some(&first) = counts.first() else { return Ok(vec![String::new(); gpus]) };
        let most = self.model.links.max(self.model.bridge);
        if most == 0 {
            return Err(format!(
                "the matrix has NV{first}, but the model {} has no NVLink",
                self.model.key
            ));
        }
        let all = counts.len() == gpus * (gpus - 1) / 2 && counts.iter().all(|&n| n == first);
        let direct = first.saturating_mul(u32::try_from(gpus - 1).unwrap_or(u32::MAX));
        let board = self.model.links;
        if all && first <= board && (first == board || direct > board) {
            self.notes.push(format!(
                "NV{first} between all GPUs is taken for NVSwitches (the model {} has {board} links)",
                self.model.key
            ));
            let link = link(SWITCH, first, SWITCH_CLASS);
            return Ok(vec![link; gpus]);
        }
        (0..gpus).map(|gpu| self.direct_links(gpu, most)).collect()
    }

    fn direct_links(&self, gpu: usize, most: u32) -> Result<String, String> {
        let mut text = String::new();
        let mut sum = 0;
        for (other, level) in self.parts.matrix.levels[gpu].iter().enumerate() {
            if let Some(count) = links_of(*level) {
                sum += count;
                text += &link(&self.bus(other), count, &self.class(other));
            }
        }
        if sum > most {
            return Err(format!(
                "GPU{gpu} has {sum} NVLinks in the matrix, the model {} has {most}",
                self.model.key
            ));
        }
        Ok(text)
    }

    /// A NUMA node with its GPUs.
    fn node(
        &mut self,
        node: u32,
        members: &[usize],
        links: &[String],
        text: &mut String,
    ) -> Result<(), String> {
        let processors = &self.parts.processors;
        write(text, format_args!("<cpu numaid=\"{node}\" affinity=\"{}\"", processors.mask(node)));
        for (name, value) in processors.attributes() {
            write(text, format_args!(" {name}=\"{}\"", plain(&value)));
        }
        text.push_str(">\n");
        for group in self.groups(members, &[Level::Pix, Level::Pxb])? {
            let below = self.groups(&group, &[Level::Pix])?;
            let top = below.len() > 1;
            if top {
                self.bridge(group[0], text);
            }
            for group in below {
                // One alone needs no switch, unless it hangs with others below one.
                let switch = top || group.len() > 1;
                if switch {
                    self.bridge(group[0], text);
                }
                for &gpu in &group {
                    self.gpu(gpu, &links[gpu], text);
                }
                text.push_str(if switch { "</pci>\n" } else { "" });
            }
            text.push_str(if top { "</pci>\n" } else { "" });
        }
        text.push_str("</cpu>\n");
        Ok(())
    }

    /// GPUs that are connected by one of these levels, directly or through
    /// others. NVLink hides the level of a pair, so it belongs to any.
    fn groups(&self, members: &[usize], near: &[Level]) -> Result<Vec<Vec<usize>>, String> {
        let mut group: BTreeMap<usize, usize> = members.iter().map(|&gpu| (gpu, gpu)).collect();
        for (a, b, level) in self.pairs() {
            if let (Some(&one), Some(&other)) = (group.get(&a), group.get(&b))
                && near.contains(&level)
            {
                let joined = one.min(other);
                for of in group.values_mut().filter(|of| **of == one || **of == other) {
                    *of = joined;
                }
            }
        }
        for (a, b, level) in self.pairs() {
            let together = group.get(&a).is_some_and(|of| Some(of) == group.get(&b));
            if together && !near.contains(&level) && links_of(level).is_none() {
                return Err(format!(
                    "GPU{a} and GPU{b} are connected by {level}, but others connect both more \
                     closely"
                ));
            }
        }
        let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (gpu, of) in group {
            groups.entry(of).or_default().push(gpu);
        }
        Ok(groups.into_values().collect())
    }

    /// Opens a PCI switch whose speed is that of a GPU below it.
    fn bridge(&mut self, gpu: usize, text: &mut String) {
        let (device, function) = (self.bridges / 8 % 32, self.bridges % 8);
        self.bridges += 1;
        write(
            text,
            format_args!(
                "<pci busid=\"ffff:ff:{device:02x}.{function}\" class=\"0x060400\" \
                 vendor=\"0xffff\" device=\"0xffff\" subsystem_vendor=\"0xffff\" \
                 subsystem_device=\"0xffff\" {}>\n",
                self.speed(gpu)
            ),
        );
    }

    fn gpu(&self, gpu: usize, links: &str, text: &mut String) {
        let card = self.card(gpu);
        let id = card.and_then(|card| card.id).unwrap_or(self.model.figures.pci_id);
        let subsystem = card.and_then(|card| card.subsystem).unwrap_or(0x10de);
        let (bus, class, speed, sm) =
            (self.bus(gpu), self.class(gpu), self.speed(gpu), self.model.sm());
        write(
            text,
            format_args!(
                "<pci busid=\"{bus}\" class=\"{class}\" vendor=\"0x{:04x}\" device=\"0x{:04x}\" \
                 subsystem_vendor=\"0x{:04x}\" subsystem_device=\"0x{:04x}\" {speed}>\n\
                 <gpu dev=\"{gpu}\" sm=\"{sm}\" gdr=\"0\">{links}</gpu>\n</pci>\n",
                id & 0xffff,
                id >> 16,
                subsystem & 0xffff,
                subsystem >> 16
            ),
        );
    }

    fn bus(&self, gpu: usize) -> String {
        let known = self.card(gpu).and_then(|card| card.bus.clone());
        known.unwrap_or_else(|| format!("{DOMAIN}:{:02x}:00.0", gpu + 1))
    }

    /// A 3D controller, as most are, unless the text knows better.
    fn class(&self, gpu: usize) -> String {
        match self.card(gpu).map(|card| card.class) {
            Some((Some(3), Some(sub))) => format!("0x03{:02x}00", sub & 0xff),
            _ => "0x030200".into(),
        }
    }

    fn generation(&self, gpu: usize) -> u32 {
        self.card(gpu).and_then(|card| card.generation).unwrap_or(self.model.pcie)
    }

    /// In the words of Linux, which NCCL compares letter by letter.
    fn speed(&self, gpu: usize) -> String {
        let speed = match self.generation(gpu) {
            1 => "2.5",
            2 => "5.0",
            3 => "8.0",
            4 => "16.0",
            5 => "32.0",
            _ => "64.0",
        };
        let width = self.card(gpu).and_then(|card| card.width).unwrap_or(16);
        format!("link_speed=\"{speed} GT/s PCIe\" link_width=\"{width}\"")
    }

    /// What was assumed or left out.
    fn remark(&mut self) {
        let cards = &self.parts.cards;
        let mut notes = Vec::new();
        if self.parts.matrix.others > 0 {
            notes.push(format!(
                "{} network cards of the matrix are left out: the virtual node has no network",
                self.parts.matrix.others
            ));
        }
        if cards.iter().all(|card| card.bus.is_none()) {
            notes.push("PCI addresses are invented (the output of nvidia-smi -q has them)".into());
        }
        if cards.iter().any(|card| card.generation.is_none()) || cards.is_empty() {
            notes.push(format!(
                "PCIe {}.0 x16 is assumed, from the model {}",
                self.model.pcie, self.model.key
            ));
        }
        let has = |wanted: fn(Level) -> bool| self.pairs().any(|(_, _, level)| wanted(level));
        if has(|level| level == Level::Node) {
            notes.push("NODE is PHB to NCCL, which does not tell host bridges apart".into());
        }
        notes.extend(self.odd_pair());
        if has(|level| links_of(level).is_some()) {
            notes.push(
                "PCIe paths of GPUs with NVLink are not in the matrix; where other pairs do not \
                 show them, GPUs are taken to hang at their NUMA node"
                    .into(),
            );
        }
        notes.extend(narrow(cards));
        self.notes.append(&mut notes);
    }

    /// Drivers print such levels: SYS throughout, or NODE from node to node. NCCL
    /// goes by the NUMA node that Linux gives for a device.
    fn odd_pair(&self) -> Option<String> {
        let (a, b, level) = self.pairs().find(|&(a, b, level)| {
            let same = self.nodes[a] == self.nodes[b];
            (level == Level::Sys && same) || (matches!(level, Level::Phb | Level::Node) && !same)
        })?;
        Some(format!(
            "GPU{a} and GPU{b} are {level} in the matrix and at NUMA nodes {} and {}; NCCL goes \
             by the node",
            self.nodes[a], self.nodes[b]
        ))
    }
}

/// Cards that use fewer lanes than they could.
fn narrow(cards: &[Card]) -> impl Iterator<Item = String> {
    cards.iter().enumerate().filter_map(|(gpu, card)| {
        let (most, now) = (card.width?, card.width_now?);
        (now < most).then(|| {
            format!("GPU{gpu} uses {now} of {most} PCIe lanes now; NCCL is told of {most}")
        })
    })
}

fn links_of(level: Level) -> Option<u32> {
    match level {
        Level::NvLink(count) => Some(count),
        _ => None,
    }
}

fn link(target: &str, count: u32, class: &str) -> String {
    format!("<nvlink target=\"{target}\" count=\"{count}\" tclass=\"{class}\"/>")
}

/// A value without what an attribute cannot hold.
fn plain(value: &str) -> String {
    value.chars().filter(|char| char.is_ascii_alphanumeric() || " ._-".contains(*char)).collect()
}

fn write(to: &mut String, what: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = to.write_fmt(what);
}
