"""The flags of SGLang 0.5.23's server: those that are taken, those without an effect here, and those refused.

They are those of ``ServerArgs.add_cli_args`` (srt/server_args.py, srt/arg_groups/fields/).
"""

from __future__ import annotations

from pagesim.setup.serve_words import QUANTIZED, Arity
from pagesim.setup.serve_words import flags as _flags

TAKEN = _flags("""
    attention-backend chunked-prefill-size context-length cuda-graph-max-bs-decode cuda-graph-max-bs-prefill
    disable-cuda-graph! disable-decode-cuda-graph! disable-overlap-schedule! disable-prefill-cuda-graph!
    disable-priority-preemption! disable-radix-cache! enable-mixed-chunk! enable-prefill-delayer!
    enable-priority-scheduling! kv-cache-dtype max-prefill-tokens max-queued-requests max-running-requests
    max-total-tokens mem-fraction-static min-free-slots-delay model-path page-size prefill-decode-interval
    prefill-decode-interval-min-bs prefill-delayer-max-delay-ms prefill-delayer-max-delay-passes
    prefill-delayer-queue-min-ratio prefill-delayer-token-usage-low-watermark prefill-max-requests
    priority-scheduling-preemption-threshold quantization radix-eviction-policy retraction-policy
    schedule-conservativeness schedule-low-priority-values-first! schedule-policy scheduler-recv-interval
    tp-size
""")
"""Flags that decide on memory or scheduling, and that pagesim has, too."""

NOTED = _flags("""
    admin-api-key allowed-media-domains* api-key asr-max-buffer-seconds asr-max-concurrent-sessions
    base-gpu-id batch-notify-size bf16-gemm-backend boundary-reduction bucket-e2e-request-latency*
    bucket-inter-token-latency* bucket-time-to-first-token* c128-page-size chat-template
    checkpoint-engine-wait-weights-before-ready! completion-template
    constrained-json-disable-any-whitespace! constrained-json-max-whitespace-cnt
    constrained-json-whitespace-pattern crash-dump-folder cuda-graph-max-seq-len-prefill
    cuda-graph-prefill-max-context debug-cuda-graph! decode-log-interval decrypted-config-file
    default-chat-template-kwargs delete-ckpt-after-loading! detokenizer-worker-num
    disable-aiter-allreduce-fusion-in-decode! disable-aiter-allreduce-fusion-in-prefill!
    disable-attn-tp-gather! disable-chunked-prefix-cache! disable-cuda-graph-padding!
    disable-custom-all-reduce! disable-fast-image-processor! disable-flashinfer-autotune!
    disable-flashinfer-cutlass-moe-fp4-allgather! disable-outlines-disk-cache!
    disable-shared-experts-fusion! disable-tokenizer-batch-decode! dist-timeout download-dir
    dsa-paged-mqa-logits-backend dsa-topk-backend dsa-triton-union dsv4-prefill-backend
    dynamic-batch-tokenizer-batch-size dynamic-batch-tokenizer-batch-timeout
    enable-aiter-allreduce-fusion! enable-attn-tp-input-scattered! enable-broadcast-mm-inputs-process!
    enable-cache-report! enable-cudagraph-gc! enable-custom-logit-processor! enable-dsa-fused-indexer!
    enable-dynamic-batch-tokenizer! enable-flashinfer-allreduce-fusion! enable-forward-pass-metrics!
    enable-fused-moe-sum-all-reduce! enable-fused-qk-norm-rope! enable-http-worker-reuseport!
    enable-http2! enable-layerwise-nvtx-marker! enable-lean-attention! enable-memory-saver!
    enable-metrics! enable-metrics-for-all-schedulers! enable-mfu-metrics! enable-mm-global-cache!
    enable-mscclpp! enable-nccl-nvls! enable-p2p-check! enable-precise-embedding-interpolation!
    enable-prefix-mm-cache! enable-profile-cuda-graph! enable-quant-communications!
    enable-request-time-stats-logging! enable-response-store! enable-return-routed-experts!
    enable-scattered-sconv! enable-ssl-refresh! enable-strict-thinking! enable-tf32-matmul!
    enable-tokenizer-batch-encode! enable-torch-compile! enable-torch-compile-debug-mode!
    enable-torch-symm-mem! enable-trace! enable-watermark! enable-weights-cpu-backup!
    enforce-disable-flashinfer-allreduce-fusion! enforce-shared-experts-fusion! engine-info-bootstrap-port
    ep-size expert-balancedness-report-mode expert-distribution-recorder-buffer-size
    expert-distribution-recorder-mode export-metrics-to-file! export-metrics-to-file-dir
    extra-metric-labels fastapi-root-path file-storage-path flashinfer-allreduce-fusion-backend
    flashinfer-autotune-skip-ops* flashinfer-mla-disable-ragged! flashinfer-mxfp4-moe-precision
    forward-pass-metrics-ipc-name forward-pass-metrics-worker-id fp4-gemm-backend fp8-gemm-backend
    fuseep-mode gated-launch-port gc-threshold* gc-warning-threshold-secs generation-tokens-buckets*
    gpu-id-step grammar-backend grpc-mode! grpc-port grpc-response-timeout-secs hf-chat-template-name host
    http2-initial-connection-window-size http2-max-concurrent-streams image-processor-backend
    incremental-streaming-output! kv-events-config limit-mm-data-per-request linear-attn-backend
    linear-attn-decode-backend linear-attn-prefill-backend load-publish-endpoint
    load-snapshot-publish-interval log-level log-level-http log-requests! log-requests-format
    log-requests-level log-requests-target* mamba-backend media-url-max-file-size-mb mlx-enable-sampling!
    mm-attention-backend mm-enable-dp-encoder! mm-feature-transport mm-global-cache-backend
    mm-io-worker-num mm-preprocess-cache-size-mb mm-process-config mm-processor-worker-num model-checksum?
    model-config-parser model-loader-extra-config moe-runner-backend nccl-port num-continuous-decode-steps
    numa-node* otlp-service-name otlp-traces-endpoint port pre-warm-nccl! preferred-sampling-params
    prompt-tokens-buckets* quantization-param-path random-seed reasoning-parser
    remote-instance-weight-loader-backend remote-instance-weight-loader-seed-instance-ip
    remote-instance-weight-loader-seed-instance-service-port
    remote-instance-weight-loader-send-weights-group-ports
    remote-instance-weight-loader-start-seed-via-transfer-engine! return-input-ids! return-output-ids!
    revision sampling-backend sampling-defaults sampling-mask-max-tokens served-model-name show-time-cost!
    skip-server-warmup! skip-tokenizer-init! sleep-on-idle! smg-grpc-mode! smg-http-sidecar-port
    soft-watchdog-timeout ssl-ca-certs ssl-certfile ssl-keyfile ssl-keyfile-password stream-interval
    stream-response-default-include-usage! tokenizer-backend tokenizer-metrics-allowed-custom-labels*
    tokenizer-metrics-custom-labels-header tokenizer-mode tokenizer-path tokenizer-worker-num
    tool-call-parser tool-server torch-compile-max-bs trace-modules triton-attention-num-kv-splits
    triton-attention-reduce-in-fp32! triton-attention-split-tile-size trust-mm-content-hashes!
    trust-remote-code! trust-request-chat-template! use-ray! uvicorn-access-log-exclude-prefixes* warmups
    watchdog-timeout watermark-config weight-loader-disable-mmap! weight-loader-drop-cache-after-load!
    weight-loader-prefetch-checkpoints! weight-loader-prefetch-num-threads weight-version
""")
"""Flags that change neither memory nor scheduling here: of the front end, of texts, logs, loading, kernels
and images."""

LAYERED = _flags("""
    disable-hybrid-swa-memory! enable-decoder-swa-bounded-replay! enable-encoder-swa-bounded-replay!
    enable-int8-mamba-checkpoint! enable-linear-replayssm! enable-linear-replayssm-spec!
    enable-mamba-cache-stochastic-rounding! int8-mamba-ckpt-size linear-replayssm-cache-len
    mamba-cache-philox-rounds mamba-full-memory-ratio mamba-max-states-per-path mamba-radix-cache-strategy
    mamba-ssm-dtype mamba-track-interval max-mamba-cache-size swa-full-tokens-ratio swa-prefix-tails
""")
"""Flags that change nothing where all layers keep every token alike, and are refused where they do not."""

REFUSED = _flags("""
    abort-on-priority-when-disabled! allow-auto-truncate! config cp-strategy cuda-graph-bs-decode*
    cuda-graph-bs-prefill* cuda-graph-config custom-weight-loader* dcp-comm-backend dcp-replicate-q-proj!
    debug-tensor-dump-input-file debug-tensor-dump-layers* debug-tensor-dump-output-folder
    decode-attention-backend decoupled-spec-bind-endpoint decoupled-spec-connect-endpoints
    decoupled-spec-rank decoupled-spec-role decrypted-draft-config-file deepep-config
    deepep-dispatcher-output-dtype deepep-mode deepep-v2-mode default-priority-value
    disaggregation-bootstrap-port disaggregation-decode-allocation-policy
    disaggregation-decode-enable-offload-kvcache! disaggregation-decode-enable-radix-cache!
    disaggregation-decode-extra-slots disaggregation-decode-host-receive-threshold
    disaggregation-decode-polling-interval disaggregation-decode-retraction-backup
    disaggregation-enable-kv-checksum! disaggregation-ib-device disaggregation-transfer-backend
    dist-init-addr dllm-algorithm dllm-algorithm-config dllm-fdfo! dsa-decode-backend dsa-prefill-backend
    elastic-ep-backend elastic-ep-initial-size elastic-ep-join-mode elastic-ep-join-rank-offset
    elastic-ep-scale-timeout enable-adaptive-dispatch-to-encoder! enable-amd-monokernel!
    enable-cp-decode-attn-tp! enable-deepseek-v4-fp4-indexer! enable-dense-mlp-attn-tp!
    enable-deterministic-inference! enable-dp-attention! enable-dp-attention-local-control-broadcast!
    enable-dp-lm-head! enable-draft-weights-cpu-backup! enable-dsa-cache-layer-split!
    enable-dynamic-chunking! enable-elastic-expert-backup! enable-eplb! enable-flexkv!
    enable-fp32-lm-head! enable-hierarchical-cache! enable-hisparse! enable-kv-cache-sharding!
    enable-layernorm-sp! enable-linker-mla-dedup! enable-lmcache! enable-lora!
    enable-lora-overlap-loading! enable-megamoe-for-layernorm-sp! enable-mis! enable-multi-layer-eagle!
    enable-multimodal! enable-nvidia-megakernel! enable-page-major-kv-layout! enable-paged-experts!
    enable-pd-role-switch! enable-pdmux! enable-prefill-cp! enable-return-aux-hidden-states!
    enable-return-hidden-states! enable-return-indexer-topk! enable-session-radix-cache!
    enable-shared-experts-attn-tp! enable-single-batch-overlap! enable-streaming-session! enable-symm-mem!
    enable-tp-lm-head-all-to-all! enable-two-batch-overlap! enable-unified-cache-external-linker!
    enable-unified-memory! enable-w4a4-mxfp4-megamoe! enable-waterfill! encoder-bootstrap-port
    encoder-only! encoder-register-urls* encoder-transfer-backend encoder-urls* ep-dispatch-algorithm
    ep-num-redundant-experts eplb-algorithm eplb-min-rebalancing-utilization-threshold
    eplb-rebalance-layers-per-chunk eplb-rebalance-num-iterations experts-shared-outer-loras!
    flashinfer-a2a-dispatch-type flexkv-config-file forward-hooks help! hicache-host-memory-fraction
    hicache-host-memory-mode hicache-io-backend hicache-mem-layout hicache-ratio hicache-storage-backend
    hicache-storage-backend-extra-config hicache-storage-prefetch-policy
    hicache-storage-prefetch-retry-max-attempts hicache-storage-prefetch-retry-poll-interval
    hicache-write-policy hisparse-config init-expert-location is-embedding! kt-cpuinfer
    kt-max-deferred-experts-per-token kt-method kt-num-gpu-experts kt-threadpool-count kt-weight-path
    kv-canary-real-data kv-canary-sweep-interval language-model-only! language-only!
    linear-attn-verify-backend lmcache-config-file load-balance-method lora-backend
    lora-drain-wait-threshold lora-eviction-policy lora-paths* lora-strict-loading! lora-target-modules*
    lora-use-virtual-experts! max-ep-size max-loaded-loras max-lora-chunk-size max-lora-rank
    max-loras-per-batch modelexpress-config modelopt-checkpoint-restore-path modelopt-checkpoint-save-path
    modelopt-export-path modelopt-quant moe-dense-tp-size monokernel-backend? mooncake-ib-device
    msprobe-dump-config num-reserved-decode-tokens offload-mode offload-num-in-group offload-prefetch-step
    optimistic-prefill-attempts paged-experts-num-resident pdmux-config-path ple-offload-backend
    ple-offload-dir ple-offload-embedding! pp-async-batch-depth pp-max-micro-batch-size
    prefill-attention-backend prefill-delayer-forward-passes-buckets*
    prefill-delayer-wait-seconds-buckets* prefill-kv-cache-dequant-dtype prefill-only-disable-kv-cache!
    quantize-and-serve! radix-cache-backend radix-eviction-policy-config
    return-aux-hidden-state-layer-ids* return-hidden-states-mode rl-on-policy-target rl-quant-profile
    shared-experts-tp-size sidecar sidecar-args sm-group-num spec-trace-dir
    speculative-accept-threshold-acc speculative-accept-threshold-single speculative-adaptive!
    speculative-adaptive-config speculative-algorithm speculative-attention-mode
    speculative-dflash-block-size speculative-domino-candidate-pool-size
    speculative-draft-attention-backend speculative-draft-kv-cache-dtype speculative-draft-load-format
    speculative-draft-model-path speculative-draft-model-quantization speculative-draft-model-revision
    speculative-draft-sink-size speculative-draft-window-size speculative-dsa-topk-backend
    speculative-dspark-align-verify-tokens-to-graph-tier! speculative-dspark-block-size
    speculative-dspark-confidence-sts-path speculative-dspark-sps-table-path speculative-eagle-topk
    speculative-enable-w4a4-mxfp4-megamoe! speculative-moe-a2a-backend speculative-moe-runner-backend
    speculative-ngram-capacity speculative-ngram-external-corpus-max-tokens
    speculative-ngram-external-corpus-path speculative-ngram-external-sam-budget
    speculative-ngram-match-type speculative-ngram-max-bfs-breadth speculative-ngram-max-trie-depth
    speculative-ngram-min-bfs-breadth speculative-num-draft-tokens speculative-num-steps
    speculative-token-map speculative-use-block-verification! speculative-use-rejection-sampling!
    strip-thinking-cache! tbo-token-distribution-threshold unified-cache-external-linker-backend
    unified-cache-external-linker-config uno-lora-path weight-cache-socket weight-cache-timeout
""")
"""Flags that affect scheduling and are not modelled: HiCache and other stores behind the device, LoRA,
speculation, data and context parallelism, prefill apart from decode, sessions, embeddings."""

HARMLESS: dict[str, tuple[str, ...]] = {
    "attn-cp-size": ("1",),
    "attn-dp-size": ("1",),
    "cpu-offload-gb": ("0",),
    "cuda-graph-backend-decode": ("full",),
    "cuda-graph-backend-prefill": ("breakable",),
    "dcp-size": ("1",),
    "device": ("cuda",),
    "disaggregation-mode": ("null",),
    "dp-size": ("1",),
    "dsv4-attn-backend": ("auto",),
    "dtype": ("auto", "half", "float16", "bfloat16"),
    "dwdp-size": ("1",),
    "hicache-size": ("0",),
    "json-model-override-args": ("{}",),
    "kv-canary": ("none",),
    "load-format": (
        "auto",
        "safetensors",
        "pt",
        "npcache",
        "dummy",
        "sharded_state",
        "presharded",
        "instanttensor",
        "mistral",
    ),
    "model-impl": ("auto", "sglang"),
    "moe-a2a-backend": ("none",),
    "moe-dp-size": ("1",),
    "nnodes": ("1",),
    "node-rank": ("0",),
    "offload-group-size": ("-1",),
    "pp-size": ("1",),
    "qsa-indexer-dtype": ("auto",),
    "startup-weight-load-mode": ("serial",),
    "weight-cache-mode": ("off",),
}
"""Flags that are refused but for these values, which change nothing."""

FLAGS: dict[str, Arity] = {**TAKEN, **NOTED, **LAYERED, **REFUSED, **dict.fromkeys(HARMLESS, "one")}

SWITCHES = tuple(
    _flags("""
    dcp-replicate-q-proj dllm-fdfo enable-decoder-swa-bounded-replay enable-dsa-fused-indexer
    enable-fused-qk-norm-rope enable-tf32-matmul enable-tp-lm-head-all-to-all experts-shared-outer-loras
    lora-strict-loading mm-enable-dp-encoder ple-offload-embedding speculative-enable-w4a4-mxfp4-megamoe
    """)
)
"""Flags without a value that ``no-`` in front turns off."""

ALIASES = {
    "-h": "help",
    "attention-context-parallel-size": "attn-cp-size",
    "attention-data-parallel-size": "attn-dp-size",
    "context-bucket": "cuda-graph-prefill-max-context",
    "data-parallel-size": "dp-size",
    "decode-context-parallel-size": "dcp-size",
    "enable-hicache": "enable-hierarchical-cache",
    "ep": "ep-size",
    "expert-parallel-size": "ep-size",
    "grpc-http-sidecar-port": "smg-http-sidecar-port",
    "hierarchical-sparse-attention-extra-config": "hisparse-config",
    "model": "model-path",
    "moe-data-parallel-size": "moe-dp-size",
    "nccl-init-addr": "dist-init-addr",
    "pipeline-parallel-size": "pp-size",
    "speculative-draft-model": "speculative-draft-model-path",
    "tensor-parallel-size": "tp-size",
}
"""Other spellings, with the dash where there is only one."""

PAGES: dict[str, tuple[int, ...]] = {
    "trtllm_mha": (16, 32, 64, 128),
    **dict.fromkeys(("trtllm_mla", "cutedsl_mla"), (32, 64)),
    "flashmla": (64,),
}
"""Values of ``--attention-backend`` whose kernels take pages of these tokens only, and 64 for any other."""

TOKEN_WISE = ("fa3", "flashinfer", "triton")
"""Values of it whose kernels take any page, and single tokens where none is given."""

ORDERS = ("fcfs", "lof", "lpm", "dfs-weight", "hrrn", "shortest-prefill-first")
"""Values of ``--schedule-policy`` that are modelled."""

EVICTIONS = ("lru", "lfu")
"""Values of ``--radix-eviction-policy`` that are modelled; the flag knows no fifo, mru and filo."""

RETRACTIONS = ("length", "priority")
"""Values of ``--retraction-policy``."""

QUANTIZATIONS: dict[str, tuple[str, ...]] = {
    **QUANTIZED,
    "modelopt_fp8": ("fp8", "fp8_block"),
    "mxfp8": ("mxfp8",),
}
"""Values of ``--quantization``, with the weight dtypes of `QUANTIZED`."""

HARMLESS_VARIABLES = frozenset(
    _flags("""
    CACHE_DIR JIT_CACHE_DIR LOG_DECODE_GRAPH_KEY LOG_FORWARD_ITERS LOG_GC LOG_MS LOG_REQUEST_HEADERS
    LOG_SCHEDULER_STATUS_INTERVAL LOG_SCHEDULER_STATUS_TARGET PORT PROFILE_RECORD_SHAPES
    PROFILE_V2 PROFILE_WITH_STACK TCP_STORE_PORT TIMEOUT_KEEP_ALIVE TORCH_PROFILER_DIR USE_MODELSCOPE
    WARMUP_TIMEOUT
    """)
)
"""Variables ``SGLANG_…`` (srt/environ.py) that change nothing here; every other one is refused."""
