//! Why NCCL chooses as it does: what its search found, what it expects of each
//! algorithm, and how data goes between the ranks.

use super::block::{Block, Cell, Column, Grid, Section, Tone, Width};
use super::sizes::{bytes, figure, numbers};
use crate::model::{CostCell, GraphFound, Limits, Prediction, Reached, TreeShape, counted};

/// More rings, trees or pairs than these are counted only.
const SHOWN: usize = 8;

/// All of it that there is.
pub fn sections<'a>(prediction: &Prediction) -> Vec<Section<'a>> {
    let mut sections = vec![graphs(&prediction.graph)];
    sections.extend(costs(&prediction.cost_table));
    sections.push(ways(prediction));
    sections
}

fn graphs<'a>(graphs: &[GraphFound]) -> Section<'a> {
    if graphs.is_empty() {
        return Vec::new();
    }
    let mut grid = Grid::new([
        ("graph search", Width::Wraps),
        ("channels", Width::Whole),
        ("GB/s each", Width::Whole),
        ("paths inside/between machines", Width::Wraps),
    ]);
    grid.rows = graphs.iter().map(|graph| graph_row(graph).map(Cell::from).into()).collect();
    vec![Block::Grid(grid)]
}

fn graph_row(graph: &GraphFound) -> [String; 4] {
    if graph.channels == 0 {
        return [graph.name.clone(), "none found".into(), String::new(), String::new()];
    }
    let [inside, between] = [graph.bw_intra, graph.bw_inter].map(figure);
    let same = graph.bw_intra.total_cmp(&graph.bw_inter).is_eq();
    [
        graph.name.clone(),
        graph.channels.to_string(),
        if same { inside } else { format!("{inside}/{between}") },
        format!("{}/{}", graph.type_intra, graph.type_inter),
    ]
}

fn costs<'a>(table: &[CostCell]) -> Vec<Section<'a>> {
    let mut sections = Vec::new();
    let mut before = Vec::new();
    for cells in table.chunk_by(|a, b| a.collective == b.collective) {
        let mut section = Vec::new();
        let grid = cost_grid(cells);
        if !grid.rows.is_empty() {
            section.push(Block::Grid(grid));
        }
        let off = reasons(cells);
        if off == before && !off.is_empty() {
            section.push(Block::text("off: the same as above"));
        } else {
            section.extend(off.iter().map(|line| Block::lead("off: ", Tone::Quiet, line)));
        }
        before = off;
        sections.push(section);
    }
    if let Some(first) = sections.first_mut() {
        let unit = "Cost table: latency in us / bandwidth in GB/s that NCCL expects";
        first.insert(0, Block::Heading(unit.into()));
    }
    sections
}

/// A row for each algorithm that is not off everywhere.
fn cost_grid(cells: &[CostCell]) -> Grid {
    let collective = cells.first().map_or("", |cell| &cell.collective);
    let protocols = names(cells, |cell| &cell.proto);
    let mut grid = Grid::new([(collective, Width::Wraps)]);
    grid.columns.extend(protocols.iter().map(|name| Column::new(name, Width::Whole)));
    for algo in names(cells, |cell| &cell.algo).into_iter().filter(|algo| !is_off(cells, algo)) {
        let mut row = vec![Cell::from(algo)];
        row.extend(protocols.iter().map(|proto| {
            let cell = cells.iter().find(|cell| cell.algo == algo && cell.proto == *proto);
            cell.map_or_else(|| Cell::from(""), cost)
        }));
        grid.rows.push(row);
    }
    grid
}

fn cost(cell: &CostCell) -> Cell {
    if !cell.enabled {
        return Cell::toned("off", Tone::Quiet);
    }
    // One decimal, as in NCCL's log, so that figures can be found there; but
    // what is not 0 does not become 0.
    let low = cell.bandwidth > 0.0 && cell.bandwidth < 0.95;
    let bw = if low { figure(cell.bandwidth) } else { format!("{:.1}", cell.bandwidth) };
    let text = format!("{:.1} / {bw}", cell.latency_us);
    if cell.forced { Cell::toned(text + " forced", Tone::Bad) } else { text.into() }
}

/// In NCCL's order, each once.
fn names(cells: &[CostCell], name: fn(&CostCell) -> &str) -> Vec<&str> {
    let mut names = Vec::new();
    for name in cells.iter().map(name) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

fn is_off(cells: &[CostCell], algo: &str) -> bool {
    cells.iter().filter(|cell| cell.algo == algo).all(|cell| !cell.enabled)
}

/// What is off: for each reason one line with all that it turned off. A pair
/// that is off without a known reason shows in the grid only.
fn reasons(cells: &[CostCell]) -> Vec<String> {
    let mut groups: Vec<(Option<&str>, Vec<String>)> = Vec::new();
    for algo in names(cells, |cell| &cell.algo) {
        let off: Vec<_> = cells.iter().filter(|cell| cell.algo == algo && !cell.enabled).collect();
        let reason = |cell: &CostCell| cell.disabled_by.clone();
        let one_reason = off.windows(2).all(|pair| reason(pair[0]) == reason(pair[1]));
        let everywhere = is_off(cells, algo);
        for cell in off {
            let named = if everywhere && one_reason {
                algo.to_owned()
            } else {
                format!("{algo}/{}", cell.proto)
            };
            if everywhere || cell.disabled_by.is_some() {
                add(&mut groups, cell.disabled_by.as_deref(), named);
            }
        }
    }
    let line = |(reason, names): (Option<&str>, Vec<String>)| {
        let reason = reason.map_or_else(String::new, |reason| format!(" ({reason})"));
        names.join(", ") + &reason
    };
    groups.into_iter().map(line).collect()
}

fn add<'a>(
    groups: &mut Vec<(Option<&'a str>, Vec<String>)>,
    reason: Option<&'a str>,
    name: String,
) {
    match groups.iter_mut().find(|(known, _)| *known == reason) {
        Some((_, names)) if names.contains(&name) => {}
        Some((_, names)) => names.push(name),
        None => groups.push((reason, vec![name])),
    }
}

/// Rings, trees, transports and what the communicator holds.
fn ways<'a>(prediction: &Prediction) -> Section<'a> {
    let rings = prediction.rings.iter().map(|ring| {
        let ranks: Vec<_> = ring.ranks.iter().map(u32::to_string).collect();
        format!("{}: {}", channels(&ring.channels), ranks.join(" "))
    });
    let trees = prediction.trees.iter();
    let trees = trees.map(|tree| format!("{}: {}", channels(&tree.channels), shape(tree)));
    let mut grid = Grid::new([("", Width::Whole), ("", Width::Wraps)]);
    for (what, lines) in [
        ("rings", cut(rings.collect())),
        ("trees", cut(trees.collect())),
        ("transports", transports(&prediction.transports)),
        ("after init", prediction.communicator.iter().flat_map(in_force).collect()),
    ] {
        for (nth, line) in lines.into_iter().enumerate() {
            grid.rows.push(vec![if nth == 0 { what } else { "" }.into(), line.into()]);
        }
    }
    if grid.rows.is_empty() { Vec::new() } else { vec![Block::Grid(grid)] }
}

fn channels(list: &[u32]) -> String {
    let s = if list.len() == 1 { "" } else { "s" };
    format!("channel{s} {}", numbers(list))
}

/// The first lines, and how many more there are.
fn cut(mut lines: Vec<String>) -> Vec<String> {
    let more = lines.len().saturating_sub(SHOWN);
    lines.truncate(SHOWN);
    if more > 0 {
        lines.push(format!("and {more} more, see --format json"));
    }
    lines
}

/// A tree from its root: `0 > 1 > (2 > 3) (4)`.
fn shape(tree: &TreeShape) -> String {
    let parents = &tree.parents;
    let roots = parents.iter().filter(|parent| **parent == -1).count();
    let root = parents.iter().position(|parent| *parent == -1).filter(|_| roots == 1);
    let mut out = String::new();
    let drawn = root.map_or(0, |root| draw(parents, root, 1, &mut out));
    if drawn == parents.len() {
        return out;
    }
    // Not one tree: NCCL's log was cut, or is not what it used to be.
    let list: Vec<_> = parents.iter().map(i32::to_string).collect();
    format!("above each rank: {}", list.join(" "))
}

/// Writes what hangs below a rank. Returns how many ranks that are.
fn draw(parents: &[i32], rank: usize, depth: usize, out: &mut String) -> usize {
    out.push_str(&rank.to_string());
    let below = parents.iter().enumerate();
    let below: Vec<_> = below.filter(|(_, up)| usize::try_from(**up) == Ok(rank)).collect();
    // A machine has 64 GPUs at most; deeper is no tree.
    if depth > 64 {
        return 1;
    }
    let mut drawn = 1;
    for (child, _) in &below {
        out.push_str(if below.len() > 1 { " (" } else { " > " });
        drawn += draw(parents, *child, depth + 1, out);
        out.push_str(if below.len() > 1 { ")" } else { "" });
    }
    drawn
}

fn transports(all: &[Reached]) -> Vec<String> {
    let mut pairs: Vec<_> = all.iter().flat_map(|reached| &reached.pairs).collect();
    pairs.sort_unstable();
    pairs.dedup();
    all.iter().map(|reached| transport(reached, pairs.len())).collect()
}

fn transport(reached: &Reached, total: usize) -> String {
    let count = reached.pairs.len();
    let which = if count == 0 {
        "no single pairs".into()
    } else if count == total {
        format!("all {}", counted(count, "connected pair"))
    } else {
        let first = reached.pairs.iter().take(SHOWN).map(|[from, to]| format!("{from}->{to}"));
        let more = if count > SHOWN { " ..." } else { "" };
        let list = first.collect::<Vec<_>>().join(" ");
        format!("{count} of {} ({list}{more})", counted(total, "connected pair"))
    };
    format!("{}: {which}, {}", reached.via, counted(reached.connections, "connection"))
}

fn in_force(held: &Limits) -> Vec<String> {
    let mut parts = Vec::new();
    parts.extend(held.channels.map(|n| counted(n as usize, "channel")));
    parts.extend(match (held.min_ctas, held.max_ctas) {
        (Some(min), Some(max)) => Some(format!("{min}-{max} CTAs")),
        (Some(min), None) => Some(format!("CTAs from {min}")),
        (None, Some(max)) => Some(format!("CTAs up to {max}")),
        (None, None) => None,
    });
    let mut lines = Vec::new();
    lines.extend((!parts.is_empty()).then(|| parts.join(", ")));
    lines.extend(held.buffers.map(|[ll, ll128, simple]| {
        let [ll, ll128, simple] = [ll, ll128, simple].map(bytes);
        format!("buffers: LL {ll}, LL128 {ll128}, Simple {simple}")
    }));
    if lines.is_empty() { vec!["not available".into()] } else { lines }
}
