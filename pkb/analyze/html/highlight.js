// Enough highlighting to read a candidate: Python, and the CUDA C++ inside its strings. Gives nodes, never markup.

const PYTHON_WORDS =
  'and as assert async await break class continue def del elif else except finally for from global if import in is lambda nonlocal not or pass raise return try while with yield None True False self';
const CPP_WORDS =
  'auto bool break case char class const constexpr continue default do double else enum extern float for if inline int long namespace new nullptr operator private public return short signed sizeof static struct switch template this typedef typename unsigned using void volatile while asm __global__ __device__ __host__ __shared__ __restrict__ __launch_bounds__ __forceinline__ int64_t uint64_t int32_t uint32_t uint4 float4 size_t';
const PYTHON = grammar(
  /#[^\n]*/,
  /[rRbBfFuU]{0,2}(?:"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?)/,
  PYTHON_WORDS,
);
const CPP = grammar(/\/\/[^\n]*|\/\*[^]*?(?:\*\/|$)|#\w+/, /"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?/, CPP_WORDS);

function grammar(comment, string, words) {
  const pattern = new RegExp(
    `(?<c>${comment.source})|(?<s>${string.source})|(?<n>\\b\\d[\\w.]*)|(?<k>\\b(?:${words.split(' ').join('|')})\\b)`,
    'g',
  );
  return pattern;
}

function highlighted(text, rules = PYTHON) {
  const nodes = [];
  let end = 0;
  for (const match of text.matchAll(rules)) {
    if (match.index > end) nodes.push(text.slice(end, match.index));
    const kind = Object.keys(match.groups).find((name) => match.groups[name] !== undefined);
    const holdsCpp = kind === 's' && rules === PYTHON && /#include|__global__|__device__|;\s*\n/.test(match[0]);
    nodes.push(element('span', { class: holdsCpp ? null : kind }, ...(holdsCpp ? highlighted(match[0], CPP) : [match[0]])));
    end = match.index + match[0].length;
  }
  if (end < text.length) nodes.push(text.slice(end));
  return nodes;
}
