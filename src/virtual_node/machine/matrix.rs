//! Reads the matrix that `nvidia-smi topo -m` prints: how each pair of GPUs is
//! connected, and at which NUMA node each GPU is. Takes it as a terminal shows
//! it, with escape sequences, tabs or blanks, and other text around it. What the
//! levels mean to NCCL is decided in `build`.

use super::super::runtime::description::MOST_GPUS;
use super::quoted;

/// The most NVLinks of a pair.
const MOST_LINKS: u32 = 64;

/// How two GPUs are connected, in `nvidia-smi`'s words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// `X`: the GPU itself.
    Own,
    /// At most one PCIe switch (`PSB`, one on the board, is the same).
    Pix,
    /// Several PCIe switches.
    Pxb,
    /// A host bridge.
    Phb,
    /// Several host bridges of one NUMA node.
    Node,
    /// Several NUMA nodes (`SOC` in old versions).
    Sys,
    /// So many NVLinks.
    NvLink(u32),
}

impl std::fmt::Display for Level {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Own => f.write_str("X"),
            Self::Pix => f.write_str("PIX"),
            Self::Pxb => f.write_str("PXB"),
            Self::Phb => f.write_str("PHB"),
            Self::Node => f.write_str("NODE"),
            Self::Sys => f.write_str("SYS"),
            Self::NvLink(links) => write!(f, "NV{links}"),
        }
    }
}

/// Where a GPU is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// CPUs near it, such as `0-63,128-191`.
    pub cpus: Option<String>,
    /// Its NUMA node; the first, when several are named.
    pub node: Option<u32>,
}

/// The whole matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// Of each pair of GPUs; square and symmetric, with `Own` on the diagonal.
    pub levels: Vec<Vec<Level>>,
    /// Of each GPU.
    pub places: Vec<Place>,
    /// Other devices (network cards) that are left out.
    pub others: usize,
}

impl Matrix {
    /// Finds the matrix in a text; `None` when there is none.
    ///
    /// # Errors
    /// What does not fit in it, as a sentence.
    pub fn find(text: &str) -> Result<Option<Self>, String> {
        let mut lines = text.lines().map(str::trim_end);
        let Some(header) = lines.by_ref().find_map(Header::read) else { return Ok(None) };
        let mut rows: Vec<Row> = Vec::new();
        for line in lines.by_ref().take_while(|line| is_row(line)).take(header.devices) {
            if line.trim_start().starts_with("GPU") {
                let row = read_row(&header, rows.len(), line)?;
                rows.push(row);
            }
        }
        if lines.any(|line| Header::read(line).is_some()) {
            return Err("there are two matrices of nvidia-smi topo -m".into());
        }
        if rows.len() != header.gpus {
            return Err(format!(
                "the matrix is not square: {} GPUs in its first line, {} rows",
                header.gpus,
                rows.len()
            ));
        }
        let (levels, places): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
        let matrix = Self { levels, places, others: header.devices - header.gpus };
        matrix.check()?;
        Ok(Some(matrix))
    }

    fn check(&self) -> Result<(), String> {
        for (a, row) in self.levels.iter().enumerate() {
            for (b, level) in row.iter().enumerate() {
                let back = self.levels[b][a];
                if (*level == Level::Own) != (a == b) {
                    return Err(format!("the matrix has {level} between GPU{a} and GPU{b}"));
                }
                if back != *level {
                    return Err(format!(
                        "the matrix is not symmetric: GPU{a} to GPU{b} is {level}, back is {back}"
                    ));
                }
            }
        }
        Ok(())
    }
}

/// A GPU's levels and place.
type Row = (Vec<Level>, Place);

/// The first line: the devices' names, then those of the columns with places.
struct Header {
    devices: usize,
    gpus: usize,
    /// `CPU Affinity`, `NUMA Affinity` and `GPU NUMA ID`, as far as they are there.
    columns: usize,
}

impl Header {
    fn read(line: &str) -> Option<Self> {
        // Other matrices (`topo -p2p`) have no such column.
        let (devices, columns) = line.split_once("CPU Affinity")?;
        let devices: Vec<&str> = devices.split_whitespace().collect();
        let gpus = devices.iter().take_while(|name| gpu_number(name).is_some()).count();
        if devices.first().and_then(|first| gpu_number(first)) != Some(0) {
            return None;
        }
        let columns = ["NUMA Affinity", "GPU NUMA ID"].map(|name| columns.contains(name));
        let columns = 1 + columns.into_iter().filter(|there| *there).count();
        Some(Self { devices: devices.len(), gpus, columns })
    }
}

/// A row begins with the name of its device and has its levels.
fn is_row(line: &str) -> bool {
    cells(line).iter().skip(1).any(|cell| level(cell).is_some())
}

fn read_row(header: &Header, number: usize, line: &str) -> Result<Row, String> {
    let cells = cells(line);
    if gpu_number(cells[0]) != Some(number) || number >= header.gpus {
        return Err(format!("the matrix has a row {} where GPU{number} belongs", quoted(cells[0])));
    }
    if header.gpus > MOST_GPUS {
        return Err(format!("the matrix has over {MOST_GPUS} GPUs"));
    }
    if cells.len() <= header.devices {
        return Err(format!("the row of GPU{number} in the matrix has too few columns"));
    }
    let levels = cells[1..=header.devices].iter().enumerate().map(|(column, cell)| {
        level(cell).ok_or_else(|| {
            format!(
                "the row of GPU{number} has {} in column {}: no level of nvidia-smi topo -m",
                quoted(cell),
                column + 1
            )
        })
    });
    let mut levels: Vec<Level> = levels.collect::<Result<_, _>>()?;
    levels.truncate(header.gpus);
    let tabs = line.trim_start().contains('\t');
    Ok((levels, place(header, tabs, &cells[header.devices + 1..])))
}

/// Columns are separated by tabs, some of them empty; where a terminal has made
/// blanks of the tabs, empty ones cannot be seen.
fn cells(line: &str) -> Vec<&str> {
    let line = line.trim_start();
    if line.contains('\t') {
        line.split('\t').map(str::trim).collect()
    } else {
        line.split_whitespace().collect()
    }
}

fn place(header: &Header, tabs: bool, cells: &[&str]) -> Place {
    let known = |cell: &&&str| !cell.is_empty() && **cell != "N/A";
    // In a job with few CPUs, GPUs of other nodes have no CPUs near.
    let hidden = usize::from(!tabs && header.columns > 1 && cells.len() + 1 == header.columns);
    let cpus = cells.first().filter(|_| hidden == 0).filter(known);
    let node = cells.get(1 - hidden).filter(|_| header.columns > 1).filter(known);
    let first = node.and_then(|cell| cell.split(['-', ',']).next());
    Place {
        cpus: cpus.map(|cell| (*cell).to_owned()),
        node: first.and_then(|text| text.parse().ok()),
    }
}

fn level(cell: &str) -> Option<Level> {
    Some(match cell {
        "X" => Level::Own,
        "PIX" | "PSB" => Level::Pix,
        "PXB" => Level::Pxb,
        "PHB" => Level::Phb,
        "NODE" => Level::Node,
        "SYS" | "SOC" => Level::Sys,
        _ => {
            let links = cell.strip_prefix("NV").and_then(|links| links.parse().ok())?;
            Level::NvLink(Some(links).filter(|links| (1..=MOST_LINKS).contains(links))?)
        }
    })
}

/// The number of `GPU12`.
fn gpu_number(word: &str) -> Option<usize> {
    let digits = word.strip_prefix("GPU")?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

/// A text without the escape sequences that color and underline it.
pub fn without_escapes(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(char) = rest.next() {
        if char != '\u{1b}' {
            clean.push(char);
        } else if rest.next_if_eq(&'[').is_some() {
            // Parameters, then a final byte from @ to ~.
            while rest.next().is_some_and(|char| !('@'..='~').contains(&char)) {}
        }
    }
    clean
}
