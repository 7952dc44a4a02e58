"""The flags of ``vllm serve`` 0.33.0: those that are taken, those without an effect here, and those refused.

They are those of `EngineArgs` and `AsyncEngineArgs` (engine/arg_utils.py) and of the front end
(entrypoints/common/cli_args.py).
"""

from __future__ import annotations

from pagesim.setup.serve_words import QUANTIZED, Arity
from pagesim.setup.serve_words import flags as _flags

TAKEN = _flags("""
    model max-model-len kv-cache-dtype tensor-parallel-size pipeline-parallel-size
    decode-context-parallel-size
    gpu-memory-utilization block-size num-gpu-blocks-override kv-cache-memory-bytes
    enable-prefix-caching! enable-chunked-prefill! max-num-batched-tokens max-num-seqs
    long-prefill-token-threshold prefill-schedule-interval scheduling-policy
    scheduler-reserve-full-isl! watermark
    async-scheduling! disable-hybrid-kv-cache-manager! prefix-cache-retention-interval quantization
    prefix-match-unit mamba-ssm-cache-dtype
    kv-offloading-size max-cudagraph-capture-size cudagraph-capture-sizes* enforce-eager!
    language-model-only! limit-mm-per-prompt mm-processor-kwargs skip-mm-profiling!
    data-parallel-size data-parallel-size-local data-parallel-hybrid-lb! data-parallel-external-lb!
    api-server-count dp-sync-interval enable-expert-parallel!
    speculative-config spec-method spec-model spec-tokens
""")
"""Flags that decide on memory or scheduling, and that pagesim has, too."""

NOTED = _flags("""
    aggregate-engine-logging! allow-credentials! allow-deprecated-quantization! allowed-headers
    allowed-local-media-path allowed-media-domains* allowed-methods allowed-origins
    anthropic-disabled-thinking-effort api-key* chat-template
    chat-template-content-format code-revision cohere-format cohere-is-reasoning-model!
    collect-detailed-traces* compilation-config config-format cpu-distributed-timeout-seconds
    cudagraph-metrics! custom-histogram-buckets data-parallel-address data-parallel-backend
    data-parallel-rpc-port default-chat-template-kwargs device-ids
    disable-access-log-for-endpoints disable-cascade-attn! disable-chunked-mm-input!
    disable-custom-all-reduce! disable-fastapi-docs! disable-log-stats! disable-uvicorn-access-log!
    distributed-timeout-seconds download-dir ec-manager-config enable-auto-tool-choice!
    enable-cumem-allocator! enable-fault-tolerance! enable-flash-late-interaction!
    enable-flashinfer-autotune! enable-force-include-usage! enable-hc-sp! enable-layerwise-nvtx-tracing!
    enable-log-deltas! enable-log-outputs! enable-log-requests! enable-logging-iteration-details!
    enable-mamba-cache-stochastic-rounding! enable-mfu-metrics! enable-mm-embeds!
    enable-nccl-comm-suspend! enable-offline-docs! enable-per-request-metrics!
    enable-prompt-tokens-details! enable-request-id-headers! enable-scale-out!
    enable-server-load-tracking! enable-shm-tensor-arena! enable-sleep-mode! enable-ssl-refresh!
    enable-tokenizer-info-endpoint! enable-trace-replay! exclude-tools-when-tool-choice-none!
    fail-on-environ-validation! fault-tolerance-config fingerprint-mode fingerprint-value
    generation-config grpc! grpc-port h11-max-header-count h11-max-incomplete-event-size hf-token? host
    ignore-patterns* interleave-mm-strings! io-processor-plugin ir-op-priority jit-monitor-mode
    jit-monitor-verbose! kda-decode-backend kernel-config kv-cache-metrics! kv-cache-metrics-sample
    kv-events-config linear-backend load-format log-config-file
    log-error-stack! log-level logging-config logits-processors* mamba-backend mamba-block-size
    mamba-cache-mode mamba-cache-philox-rounds
    mamba-ssu-algorithm max-log-len max-logprobs max-parallel-loading-workers media-io-kwargs middleware
    mm-device-do-normalize! mm-encoder-attn-backend mm-encoder-attn-dtype mm-encoder-fp8-scale-path
    mm-encoder-fp8-scale-save-margin mm-encoder-fp8-scale-save-path mm-encoder-tp-mode mm-hasher-algorithm
    mm-ipc-gpu-memory-gb mm-processor-cache-gb mm-processor-cache-type mm-processor-device
    mm-shm-cache-max-object-size-mb mm-tensor-ipc model-loader-extra-config
    moe-backend monokernel! numa-bind! numa-bind-cpus* numa-bind-nodes* optimization-level
    otlp-traces-endpoint override-generation-config per-request-spec-decode-metrics port
    prefix-caching-hash-algo profiler-config pt-load-map-location ray-workers-use-nsight! reasoning-config
    reasoning-effort-map reasoning-parser reasoning-parser-plugin renderer-num-workers response-role
    return-tokens-as-token-ids! revision root-path safetensors-load-strategy
    safetensors-prefetch-block-size safetensors-prefetch-num-threads seed served-model-name*
    show-hidden-metrics-for-version shutdown-timeout skip-tokenizer-init!
    sleep-mode-backend sleep-mode-offload-cudagraph! sleep-preserve-parameter-names*
    sparse-indexer-topk-backend sse-keep-alive-interval ssl-ca-certs ssl-cert-reqs ssl-certfile
    ssl-ciphers ssl-keyfile stream-interval structured-outputs-config tokenizer tokenizer-mode
    tokenizer-revision tokens-only! tool-call-parser tool-parser-plugin tool-server tool-strict-level
    trust-remote-code! trust-request-chat-template! trust-request-mm-kwargs! uds use-tqdm-on-load!
    uvicorn-log-level video-pruning-method video-pruning-rate watchdog-config watermark-config
    weight-transfer-config
""")
"""Flags that change neither memory nor scheduling here: of the front end, of texts, logs, loading, kernels
and CUDA graphs."""

LAYERED = _flags("""
    disable-sliding-window! enable-mamba-shared-prefix-checkpoint! gdn-prefill-backend kda-prefill-backend
    mamba-cache-dtype replayssm-buffer-len
    swa-bounded-replay! use-replayssm!
""")
"""Flags that change nothing where all layers keep every token alike, and are refused where they do not."""

REFUSED = _flags("""
    additional-config attention-config aux-output-config config cp-kv-cache-interleave-size
    cpu-offload-params* data-parallel-multi-port-external-lb! data-parallel-rank
    data-parallel-start-rank data-parallel-supervisor-port dcp-comm-backend
    dcp-kv-cache-interleave-size dcp-q-replicate! default-mm-loras diffusion-config
    disable-nccl-for-dp-synchronization! dp-supervisor-probe-failure-threshold
    dp-supervisor-probe-interval-s dp-supervisor-probe-timeout-s ec-transfer-config
    elastic-ep-max-dp-size enable-batch-sharded-sampling! enable-elastic-ep! enable-eplb! enable-lora!
    enable-mixed-moe-lora-format! enable-moe-shared-loras! enable-prompt-embeds!
    enable-return-routed-experts! enable-tower-connector-lora! engram-config eplb-config
    fully-sharded-loras! headless! help? hf-config-path hf-overrides kv-cache-dtype-skip-layers*
    kv-sharing-fast-prefill! kv-transfer-config
    long-prefill-token-threshold-adaptive! lora-dtype lora-modules* lora-target-modules* master-addr
    master-port max-cpu-loras max-lora-cls-labels max-lora-rank max-loras max-num-active-seqs
    max-num-queued-reqs max-num-queued-tokens max-num-scheduled-tokens mm-encoder-only!
    model-class-overrides offload-num-in-group offload-params* offload-prefetch-step pooler-config
    quantization-config return-sampling-mask! scheduler-cls
    specialize-active-lora! use-fp64-gumbel! worker-cls
    worker-extension-cls
""")
"""Flags that affect scheduling and are not modelled."""

QUANTIZATIONS: dict[str, tuple[str, ...]] = {**QUANTIZED, "fbgemm_fp8": ("fp8",)}
"""Values of ``--quantization``, with the weight dtypes of `QUANTIZED`."""

WITHIN_A_REPLICA = _flags("""
    all2all-backend dbo-decode-token-threshold dbo-prefill-token-threshold enable-dbo!
    enable-ep-weight-filter! expert-placement-strategy ubatch-size
""")
"""Flags of experts that change neither memory nor scheduling where one replica serves (``-dp 1``).

Nothing in v1/core reads them. Beside several ranks ``--all2all-backend`` decides on a default, and two
batches at once (``--enable-dbo``, ``--ubatch-size``) are refused.
"""

EXPERTS = "enable-expert-parallel"

OF_RANKS = (
    *("data-parallel-size-local", "data-parallel-hybrid-lb", "data-parallel-external-lb"),
    "dp-sync-interval",
)
"""Flags that several ranks alone have a use for, of which one has at most the value 1."""

TWO_BATCHES = ("enable-dbo", "ubatch-size", "dbo-decode-token-threshold", "dbo-prefill-token-threshold")

BATCHED_EXPERTS = ("deepep_low_latency", "nixl_ep")
"""Backends with which iterations of ranks with whole experts have 256 tokens at most where that is left open
(``use_batched_dp_moe``, config/scheduler.py 42)."""

HARMLESS: dict[str, tuple[str, ...]] = {
    "kv-offloading-backend": ("native",),
    "logprobs-mode": ("raw_logprobs", "raw_logits"),
    "model-impl": ("auto", "vllm"),
    "cpu-offload-gb": ("0", "0.0"),
    "offload-backend": ("auto",),
    "offload-group-size": ("0",),
    "prefill-context-parallel-size": ("1",),
    "nnodes": ("1",),
    "node-rank": ("0",),
    "runner": ("auto", "generate"),
    "convert": ("auto", "none"),
    "dtype": ("auto", "half", "float16", "bfloat16"),
    "attention-backend": ("FLASH_ATTN", "FLASHINFER", "TRITON_ATTN"),
    "performance-mode": ("balanced", "interactivity"),
    "distributed-executor-backend": ("mp", "ray", "uni"),
}
"""Flags that are refused but for these values, which change nothing."""

FLAGS: dict[str, Arity] = {
    **TAKEN,
    **NOTED,
    **WITHIN_A_REPLICA,
    **LAYERED,
    **REFUSED,
    **dict.fromkeys(HARMLESS, "one"),
}

ALIASES = {
    "device-memory-utilization": "gpu-memory-utilization",
    "-q": "quantization",
    "-pp": "pipeline-parallel-size",
    "-n": "nnodes",
    "-r": "node-rank",
    "-tp": "tensor-parallel-size",
    "-dcp": "decode-context-parallel-size",
    "-pcp": "prefill-context-parallel-size",
    "-dp": "data-parallel-size",
    "-dpn": "data-parallel-rank",
    "-dpr": "data-parallel-start-rank",
    "-dpl": "data-parallel-size-local",
    "-dpa": "data-parallel-address",
    "-dpp": "data-parallel-rpc-port",
    "-dpb": "data-parallel-backend",
    "-dph": "data-parallel-hybrid-lb",
    "-dpe": "data-parallel-external-lb",
    "-dpm": "data-parallel-multi-port-external-lb",
    "-ep": "enable-expert-parallel",
    "-sc": "speculative-config",
    "-dc": "diffusion-config",
    "-cc": "compilation-config",
    "-ac": "attention-config",
    "-asc": "api-server-count",
    "-O": "optimization-level",
    "-h": "help",
}
"""Other spellings, with the dash where there is only one."""

_SPECULATES = "give --speculative-config, a JSON object"

OLDER = {
    "swap-space": "preempted requests are recomputed and never swapped; leave it out",
    "preemption-mode": "preempted requests are recomputed and never swapped; leave it out",
    "use-v2-block-manager": "there is one block manager; leave it out",
    "num-lookahead-slots": f"they follow from the drafts; {_SPECULATES}",
    "num-scheduler-steps": "the next batch is scheduled while one runs (--async-scheduling); leave it out",
    "multi-step-stream-outputs": "steps are scheduled one by one; leave it out",
    "scheduler-delay-factor": "prompts are scheduled at once; --prefill-schedule-interval holds them back",
    "max-seq-len-to-capture": "graphs are captured by tokens of a batch: --max-cudagraph-capture-size",
    "cuda-graph-sizes": "its name is --cudagraph-capture-sizes",
    "speculative-model": _SPECULATES,
    "num-speculative-tokens": _SPECULATES,
    "ngram-prompt-lookup-max": _SPECULATES,
    "worker-use-ray": "give --distributed-executor-backend ray",
    "engine-use-ray": "give --distributed-executor-backend ray",
    "guided-decoding-backend": "give --structured-outputs-config",
    "enable-reasoning": "--reasoning-parser says it alone; leave it out",
    "disable-log-requests": "requests are not logged unless --enable-log-requests is given; leave it out",
    "task": "its place is taken by --runner and --convert",
    "rope-scaling": "give it within --hf-overrides",
    "rope-theta": "give it within --hf-overrides",
    "disable-async-output-proc": "give --no-async-scheduling",
}
"""Flags of vLLM's earlier releases that 0.33.0 does not know, and what to do instead."""

HARMLESS_VARIABLES = frozenset(
    _flags("""
    API_KEY ASSETS_CACHE CACHE_ROOT CONFIGURE_LOGGING CONFIG_ROOT DEBUG_LOG_API_SERVER_RESPONSE
    DISABLE_LOG_LOGO DO_NOT_TRACK ENGINE_READY_TIMEOUT_S EXECUTE_MODEL_TIMEOUT_SECONDS HOST_IP
    HTTP_MAX_REQUEST_BODY_SIZE HTTP_TIMEOUT_KEEP_ALIVE KEEP_ALIVE_ON_ENGINE_DEATH LOGGING_COLOR
    LOGGING_CONFIG_PATH LOGGING_LEVEL LOGGING_PREFIX LOGGING_STREAM LOG_BATCHSIZE_INTERVAL
    LOG_STATS_INTERVAL LOOPBACK_IP NO_USAGE_STATS PORT PROCESS_NAME_PREFIX RPC_BASE_PATH SERVER_DEV_MODE
    SKIP_P2P_CHECK USAGE_SOURCE USAGE_STATS_SERVER USE_MODELSCOPE WORKER_MULTIPROC_METHOD
    """)
)
"""Variables ``VLLM_…`` (envs.py) that change nothing here; every other one is refused."""
