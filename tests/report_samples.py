"""Answers with invented numbers for rendering and command line tests."""

from __future__ import annotations

from typing import Any

from perfmodel.report.answer import (
    Answer,
    Choice,
    Combinations,
    CommandsInfo,
    EngineInfo,
    Evidence,
    MemoryByPhaseGib,
    MemoryGib,
    OperatorRow,
    ParallelInfo,
    PredictAnswer,
    Prediction,
    RejectedRow,
    ScalingRow,
    StagesMs,
    SystemInfo,
    WorkloadInfo,
)

SERVE = (
    "vllm serve nvidia/Cosmos3-Nano --omni --cfg-parallel-size 2 --usp 2 "
    "--vae-patch-parallel-size 4 \\\n  --diffusion-attention-backend CUDNN_ATTN --no-guardrails"
)


def workload() -> WorkloadInfo:
    return WorkloadInfo(
        model="cosmos3-nano",
        title="Cosmos3-Nano",
        task="t2v",
        width=1280,
        height=720,
        frames=189,
        fps=24,
        seconds=7.875,
        steps=35,
        guidance=6,
        latent_frames=48,
        latent_height=45,
        latent_width=80,
        video_tokens=44160,
        text_tokens=512,
        guidance_branches=2,
        forwards=70,
        assumed=("model", "task", "width", "height", "fps", "steps", "guidance", "text_tokens"),
    )


def system(num_gpus: int = 4) -> SystemInfo:
    return SystemInfo(
        device="b300-sxm",
        title="B300",
        label=f"{num_gpus}x B300",
        spec=f"{num_gpus}xb300-sxm",
        num_gpus=num_gpus,
        link="NVLink",
        usable_gib=268.6,
    )


def engine() -> EngineInfo:
    return EngineInfo(
        name="vllm-omni",
        title="vLLM-Omni",
        version="0.30.0",
        options={
            "dtype": "bf16",
            "compile": True,
            "attention_backend": "CUDNN_ATTN",
            "guardrails": False,
            "offload": "none",
        },
        assumed=("version", "dtype", "compile", "attention_backend", "guardrails"),
    )


def memory(total: float) -> MemoryGib:
    return MemoryGib(
        weights=total - 6.0,
        text_encoder=0.0,
        vae=1.5,
        activations=2.0,
        workspace=0.5,
        collectives=0.5,
        runtime=1.5,
    )


def prediction(config_id: str, latency: float, **changes: Any) -> Prediction:
    fixed = dict(text_encode=50.0, vae_encode=0.0, vae_decode=3950.0, transfer=3000.0)
    denoise = latency - sum(fixed.values()) - 1700.0
    fields: dict[str, Any] = dict(
        config_id=config_id,
        num_gpus=4,
        parallel=ParallelInfo(cfg_parallel_size=2, ulysses_degree=2, vae_patch_parallel_size=4),
        stages_ms=StagesMs(denoise=denoise, video_encode=1700.0, **fixed),
        stages_basis={"denoise": "kernels", "vae_decode": "runs", "video_encode": "prior"},
        denoise_per_step_ms=denoise / 35,
        latency_ms=latency,
        latency_low_ms=latency * 0.95,
        latency_high_ms=latency * 1.08,
        pipeline_forward_ms=latency - 4700.0,
        requests_per_hour=3_600_000 / latency,
        vs_best_pct=(latency / 33290 - 1) * 100,
        peak_memory_gib=44.0,
        peak_rank=0,
        peak_phase="denoise",
        memory_gib=memory(44.0),
        memory_parts_gib={"load": memory(40.0), "denoise": memory(44.0)},
        memory_by_phase_gib=MemoryByPhaseGib(load=40.0, denoise=44.0),
        capacity_gib=268.6,
        fits=True,
        fit_status="fits",
        provenance_share={"fitted": 0.95, "prior": 0.05},
        commands=CommandsInfo(
            serve=SERVE, request="curl -sS -X POST http://localhost:8000", benchmark="vllm bench"
        ),
    )
    return Prediction(**{**fields, **changes})


def answer(**changes: Any) -> Answer:
    best = prediction(
        "cfg2_usp2_vaepp4",
        33290.0,
        rank=1,
        speedup=2.97,
        why="Both guidance branches run at once, each split over 2 GPUs.",
    )
    fields: dict[str, Any] = dict(
        workload=workload(),
        system=system(),
        engine=engine(),
        objective="latency",
        trust="calibrated",
        recommendations=(
            best,
            prediction("usp4_vaepp4", 34020.0, rank=2, tied_with_best=True),
            prediction("cfg2_ring2_vaepp4", 34590.0, rank=3),
        ),
        scaling=(
            ScalingRow(
                num_gpus=1,
                config_id="single",
                latency_ms=98870.0,
                speedup=1.0,
                efficiency=1.0,
                requests_per_hour=145.6,
                replicas=4,
                best_throughput=True,
            ),
            ScalingRow(
                num_gpus=4,
                config_id="cfg2_usp2_vaepp4",
                latency_ms=33290.0,
                speedup=2.97,
                efficiency=0.7425,
                requests_per_hour=108.1,
                replicas=1,
                best_latency=True,
            ),
        ),
        combinations=Combinations(total=1512, legal=214, fitting=214, rejected=1298),
        rejected=(
            RejectedRow(rule="world-size", count=640, title="world size", example="usp8 needs 8"),
            RejectedRow(rule="ulysses-heads", count=658, title="heads", example="ulysses=3"),
        ),
        lossy_options=(
            Choice(
                title="fp8 linears",
                option="dtype=fp8",
                latency_change_pct=-9.0,
                memory_change_gib=-6.9,
            ),
        ),
        vae_choices=(
            Choice(title="1 GPU", vae_decode_ms=6100.0),
            Choice(title="4 GPUs", vae_decode_ms=3950.0, chosen=True),
        ),
        vae_note="Two lose to one.",
        evidence=(
            Evidence(kind="holdout", text="26 measured runs outside the fit.", url="https://e.org"),
        ),
        provenance={"perfmodel": "0.1.0", "fit": "b300-sxm@4c1d9a", "rules": "vllm-omni 0.30.0"},
        command="perfmodel recommend --gpus 4xb300-sxm --model cosmos3-nano --frames 189",
        answer_id="7f3c9e1d",
    )
    return Answer(**{**fields, **changes})


def no_fit() -> Answer:
    return answer(
        status="does_not_fit",
        recommendations=(),
        scaling=(),
        vae_choices=(),
        vae_note=None,
        lossy_options=(),
        nearest_miss=prediction("tp2", 99000.0, peak_memory_gib=311.4, fits=False, fit_status="no"),
        over_gib=42.8,
        would_fit=(
            Choice(
                title="layerwise offload",
                config_id="tp2",
                option="offload=layerwise",
                host_memory_gib=126.0,
                latency_ms=2_460_000.0,
            ),
        ),
        fit_notes=("A shorter video does not help: the weights alone exceed the memory.",),
    )


def operator(name: str, time_ms: float, **changes: Any) -> OperatorRow:
    fields: dict[str, Any] = dict(
        stage="denoise",
        name=name,
        kind="attention",
        count=1260,
        time_ms=time_ms,
        time_each_ms=time_ms / 1260,
        time_share=time_ms / 24600,
        bound="matrix",
        roof_fraction=0.75,
        provenance="fitted",
        basis="kernels",
    )
    return OperatorRow(**{**fields, **changes})


def predicted(**changes: Any) -> PredictAnswer:
    whole = answer()
    shared = (
        "workload",
        "system",
        "engine",
        "trust",
        "evidence",
        "provenance",
        "command",
        "answer_id",
    )
    best = prediction(
        "cfg2_usp2_vaepp4",
        33290.0,
        one_gpu_ms=98870.0,
        ideal_ms=24717.5,
        speedup_loss_ms={"not_split_transfer": 2250.0, "collectives": 1450.0},
    )
    fields: dict[str, Any] = dict(
        prediction=best,
        operators=(
            operator("self_attention", 12070.0),
            operator(
                "ulysses_all_to_all",
                1300.0,
                kind="collective",
                group_size=2,
                message_bytes=181e6,
                link="NVLink",
                bound="link",
            ),
            operator("down_projection", 1800.0, kind="gemm"),
        ),
        denoise_lower_bound_ms=16100.0,
        **{name: getattr(whole, name) for name in shared},
    )
    return PredictAnswer(**{**fields, **changes})
