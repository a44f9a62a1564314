// Memory as rectangles over steps and addresses: as the plan has it, and as the runs have had it.

// What a block is for, in words.
function kindsOf(model) {
  return model.record.halves.length > 1
    ? {
        saved: 'saved for backward',
        output: 'results and gradients',
        forward: 'within forward',
        backward: 'within backward',
      }
    : { output: 'results', forward: 'temporary' };
}

function plannedMemory(model) {
  const { memory, live } = model.record;
  return {
    rects: model.blocks,
    live,
    steps: model.steps.length,
    halfAt: model.halfAt,
    size: memory.arena_bytes,
    bands: [],
    stepAt: (step) => model.steps[step],
    note: memory.complete ? '' : 'unknown sizes count as nothing',
  };
}

// Large allocations of the runs, temporaries within kernels among them. Two arenas: what lives on when a run is over
// lies above what does not.
function placedMemory(model) {
  const { placed } = model.record;
  if (!placed.blocks.length) return null;
  const ids = placed.values.map((value) => model.final.producer(value));
  const live = new Array(placed.steps).fill(0);
  let unplaced = 0;
  const rects = placed.blocks.map((block, place) => {
    for (let step = block.first; step < Math.min(block.end, placed.steps); step += 1) live[step] += block.bytes;
    const id = ids[block.first];
    const half = block.first < placed.forward_steps ? 'forward' : 'backward';
    const across = half === 'forward' && block.end > placed.forward_steps && placed.forward_steps < placed.steps;
    const node = id === undefined ? null : model.final.node(id);
    if (block.arena === 'torch') unplaced += 1;
    return {
      ...block,
      place,
      id: id === undefined ? null : id,
      half,
      saved: across,
      value: '',
      kind: across ? 'saved' : block.arena === 'passing' ? half : 'output',
      offset: block.arena === 'torch' ? null : block.offset + (block.arena === 'lasting' ? placed.passing_bytes : 0),
      op: node ? node.op : '',
      node: node ? node.name : '',
    };
  });
  const stepOf = (step) => {
    const id = ids[step];
    return id === undefined ? null : { place: step, op: model.final.node(id).op, node: model.final.node(id).name, id };
  };
  const bands = placed.lasting_bytes ? [[placed.passing_bytes, 'lives on after a run']] : [];
  return {
    rects,
    live,
    steps: placed.steps,
    halfAt: placed.forward_steps,
    size: placed.passing_bytes + placed.lasting_bytes,
    bands,
    stepAt: stepOf,
    note: unplaced ? `${unplaced} blocks of torch's allocator are not drawn` : '',
  };
}
