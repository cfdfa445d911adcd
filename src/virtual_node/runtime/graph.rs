//! Stream capture and graphs: plain bookkeeping of what a graph would do.

use super::abi::{HostFunction, HostNode, In, KernelNode, Out};
use super::errors::{Code, Error, ILLEGAL_STATE, INVALID_HANDLE, INVALID_VALUE, code};
use super::launch;
pub(super) use super::timeline::Work;
use super::timeline::{Capture, Graph, UserObject, lock};
use super::{state, timeline};
use std::ffi::{c_int, c_uint};

/// Adds a node.
const ADD: c_uint = 0;
/// `cudaStreamSetCaptureDependencies`.
const REPLACE: c_uint = 1;

functions! {
    "cudaStreamBeginCapture" => begin,
    "cudaStreamEndCapture" => end,
    "cudaStreamIsCapturing" => is_capturing,
    "cudaStreamGetCaptureInfo" => unsuffixed_info(),
    "cudaStreamGetCaptureInfo_v2" => info_2,
    "cudaStreamGetCaptureInfo_v3" => info_3,
    "cudaStreamUpdateCaptureDependencies" => unsuffixed_update(),
    "cudaStreamUpdateCaptureDependencies_v2" => update_2,
    "cudaGraphAddDependencies" => add_dependencies,
    "cudaGraphAddDependencies_v2" => add_dependencies,
    "cudaGraphAddEventRecordNode" => add_event_node,
    "cudaGraphAddEventWaitNode" => add_event_node,
    "cudaGraphAddHostNode" => add_host_node,
    "cudaGraphAddKernelNode" => add_kernel_node,
    "cudaGraphRetainUserObject" => retain_object,
    "cudaUserObjectCreate" => create_object,
    "cudaGraphInstantiate" => instantiate,
    "cudaGraphLaunch" => launch_graph,
    "cudaGraphDestroy" => destroy,
    "cudaGraphExecDestroy" => destroy_instance,
}

/// CUDA 13 gave the plain names the signatures that had a suffix in CUDA 12.
fn unsuffixed_info() -> *const () {
    if state::thirteen() { info_3 as *const () } else { info_1 as *const () }
}

/// As [`unsuffixed_info`].
fn unsuffixed_update() -> *const () {
    if state::thirteen() { update_2 as *const () } else { update_1 as *const () }
}

/// Puts work into the graph that a stream captures into; false when it
/// captures none.
pub(super) fn append(stream: usize, work: Work) -> Result<bool, Error> {
    let mut timeline = lock();
    let tables = timeline.tables();
    let Some(graph) = tables.capture(stream)?.map(|capture| capture.graph) else {
        return Ok(false);
    };
    let node = tables.add(graph, work)?;
    if let Some(capture) = tables.capture(stream)? {
        capture.heads = vec![node];
    }
    Ok(true)
}

/// `cudaStreamBeginCapture`.
pub extern "C" fn begin(stream: usize, _mode: c_int) -> Code {
    code(begin_on(stream))
}

fn begin_on(stream: usize) -> Result<(), Error> {
    let mut timeline = lock();
    let tables = timeline.tables();
    if tables.stream(stream)?.capture.is_some() {
        return Err(ILLEGAL_STATE);
    }
    let graph = tables.handle();
    tables.graphs.insert(graph, Graph { id: graph as u64, references: 1, ..Graph::default() });
    tables.stream(stream)?.capture = Some(Capture { graph, origin: true, heads: Vec::new() });
    Ok(())
}

/// `cudaStreamEndCapture`.
pub extern "C" fn end(stream: usize, to: Out<usize>) -> Code {
    code(end_on(stream).and_then(|graph| to.set(graph)))
}

fn end_on(stream: usize) -> Result<usize, Error> {
    let mut timeline = lock();
    let tables = timeline.tables();
    let capture = tables.stream(stream)?.capture.as_ref().filter(|capture| capture.origin);
    let graph = capture.ok_or(ILLEGAL_STATE)?.graph;
    for stream in tables.streams.values_mut() {
        stream.capture.take_if(|capture| capture.graph == graph);
    }
    Ok(graph)
}

extern "C" fn is_capturing(stream: usize, to: Out<c_int>) -> Code {
    let capturing = lock().tables().capture(stream).map(|capture| capture.is_some());
    code(capturing.and_then(|yes| to.set(c_int::from(yes))))
}

/// What the info functions tell: graph, id, and where its dependencies are.
/// That place stays until the stream is used again, as documented.
struct Info {
    graph: usize,
    id: u64,
    heads: *const usize,
    count: usize,
}

fn info(stream: usize, status: Out<c_int>) -> Result<Option<Info>, Error> {
    let mut timeline = lock();
    let tables = timeline.tables();
    let capture = tables.capture(stream)?.map(|c| (c.graph, c.heads.as_ptr(), c.heads.len()));
    status.set(c_int::from(capture.is_some()))?;
    let Some((graph, heads, count)) = capture else { return Ok(None) };
    let id = tables.graphs.get(&graph).ok_or(INVALID_HANDLE)?.id;
    Ok(Some(Info { graph, id, heads, count }))
}

extern "C" fn info_1(stream: usize, status: Out<c_int>, id: Out<u64>) -> Code {
    code(info(stream, status).map(|info| {
        if let Some(info) = info {
            id.offer(info.id);
        }
    }))
}

extern "C" fn info_2(
    stream: usize,
    status: Out<c_int>,
    id: Out<u64>,
    graph: Out<usize>,
    heads: Out<*const usize>,
    count: Out<usize>,
) -> Code {
    code(info(stream, status).map(|info| {
        if let Some(info) = info {
            id.offer(info.id);
            graph.offer(info.graph);
            heads.offer(info.heads);
            count.offer(info.count);
        }
    }))
}

extern "C" fn info_3(
    stream: usize,
    status: Out<c_int>,
    id: Out<u64>,
    graph: Out<usize>,
    heads: Out<*const usize>,
    edges: Out<usize>,
    count: Out<usize>,
) -> Code {
    edges.offer(0); // no edge has data
    info_2(stream, status, id, graph, heads, count)
}

extern "C" fn update_1(stream: usize, nodes: In<usize>, count: usize, flags: c_uint) -> Code {
    code(update(stream, &nodes, count, flags))
}

extern "C" fn update_2(
    stream: usize,
    nodes: In<usize>,
    _edges: usize,
    count: usize,
    flags: c_uint,
) -> Code {
    code(update(stream, &nodes, count, flags))
}

fn update(stream: usize, nodes: &In<usize>, count: usize, flags: c_uint) -> Result<(), Error> {
    let new: Vec<usize> = (0..count).map(|at| nodes.at(at)).collect::<Result<_, _>>()?;
    let mut timeline = lock();
    let capture = timeline.tables().capture(stream)?.ok_or(ILLEGAL_STATE)?;
    match flags {
        ADD => capture.heads.extend(new),
        REPLACE => capture.heads = new,
        _ => return Err(INVALID_VALUE),
    }
    Ok(())
}

/// Edges between nodes matter only to an execution.
extern "C" fn add_dependencies(graph: usize) -> Code {
    code(lock().tables().graphs.get(&graph).map(drop).ok_or(INVALID_HANDLE))
}

fn add(to: Out<usize>, graph: usize, work: Work) -> Result<(), Error> {
    let node = lock().tables().add(graph, work)?;
    to.set(node)
}

extern "C" fn add_event_node(
    to: Out<usize>,
    graph: usize,
    _nodes: usize,
    _count: usize,
    _event: usize,
) -> Code {
    code(add(to, graph, Work::Event))
}

extern "C" fn add_host_node(
    to: Out<usize>,
    graph: usize,
    _nodes: usize,
    _count: usize,
    node: In<HostNode>,
) -> Code {
    code(node.get().and_then(|node| {
        let call = node.function.ok_or(INVALID_VALUE)?;
        add(to, graph, Work::Host(call, node.data))
    }))
}

extern "C" fn add_kernel_node(
    to: Out<usize>,
    graph: usize,
    _nodes: usize,
    _count: usize,
    node: In<KernelNode>,
) -> Code {
    code(node.get().and_then(|node| {
        add(to, graph, Work::Kernel)?;
        launch::node_added(&node);
        Ok(())
    }))
}

extern "C" fn create_object(
    to: Out<usize>,
    pointer: usize,
    destroy: Option<HostFunction>,
    references: c_uint,
    _flags: c_uint,
) -> Code {
    let Some(destroy) = destroy else { return code(Err(INVALID_VALUE)) };
    let mut timeline = lock();
    let tables = timeline.tables();
    let handle = tables.handle();
    tables.objects.insert(handle, UserObject { pointer, destroy, references });
    code(to.set(handle))
}

extern "C" fn retain_object(graph: usize, object: usize, count: c_uint, flags: c_uint) -> Code {
    const MOVE: c_uint = 1; // the graph takes over references of the caller
    let mut timeline = lock();
    let tables = timeline.tables();
    let (Some(known), Some(graph)) =
        (tables.objects.get_mut(&object), tables.graphs.get_mut(&graph))
    else {
        return code(Err(INVALID_HANDLE));
    };
    if flags != MOVE {
        known.references = known.references.saturating_add(count);
    }
    graph.objects.push((object, count));
    0
}

/// `cudaGraphInstantiate` of CUDA 12 and 13.
pub extern "C" fn instantiate(to: Out<usize>, graph: usize, _flags: u64) -> Code {
    let mut timeline = lock();
    let tables = timeline.tables();
    let handle = tables.handle();
    let Some(known) = tables.graphs.get_mut(&graph) else { return code(Err(INVALID_HANDLE)) };
    known.references += 1;
    tables.instances.insert(handle, graph);
    code(to.set(handle))
}

/// `cudaGraphLaunch`: host functions are called, kernels are not executed.
pub extern "C" fn launch_graph(instance: usize, _stream: usize) -> Code {
    let mut timeline = lock();
    let tables = timeline.tables();
    let graph = tables.instances.get(&instance).and_then(|graph| tables.graphs.get(graph));
    let Some(work) = graph.map(|graph| graph.work.clone()) else {
        return code(Err(INVALID_HANDLE));
    };
    drop(timeline);
    for work in work {
        if let Work::Host(call, data) = work {
            call(data);
        }
    }
    0
}

/// `cudaGraphDestroy`.
pub extern "C" fn destroy(graph: usize) -> Code {
    code(release(graph))
}

/// `cudaGraphExecDestroy`.
pub extern "C" fn destroy_instance(instance: usize) -> Code {
    let graph = lock().tables().instances.remove(&instance);
    code(graph.ok_or(INVALID_HANDLE).and_then(release))
}

fn release(graph: usize) -> Result<(), Error> {
    let gone = timeline::lock().tables().release(graph)?;
    for object in gone {
        (object.destroy)(object.pointer);
    }
    Ok(())
}
