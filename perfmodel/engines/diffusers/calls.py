"""The pipeline class of each model and the arguments that its ``__call__`` has.

Read in the 0.42.1 wheel, ``pipelines/*/pipeline_*.py``
(https://pypi.org/project/diffusers/0.42.1/).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from perfmodel.engines import guidance
from perfmodel.engines.base import Context

Value = str | float | int


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """How a pipeline is loaded and called.

    Attributes:
        pipeline: class that loads the checkpoint; "": it has modular blocks only.
        guider: the guidance scale is of the pipeline's guider, no argument.
        sized: it takes height and width; else they follow the image.
        steps: argument for the steps; ``pyramid_num_inference_steps_list`` has them by stage.
        frames: argument for the number of frames.
        rate: argument for the frame rate; "": none.
        image: argument for the input image.
        video: argument for the input clip; "": none.
        revision: branch of the repository with the checkpoint in the library's layout.
        control: source of a control network that is loaded first, without its precision.
        base: repository of the pipeline around a control network.
        clip, picture: where the result has them; a picture of one frame states that number.
    """

    pipeline: str = "DiffusionPipeline"
    guider: bool = False
    sized: bool = True
    steps: str = "num_inference_steps"
    frames: str = "num_frames"
    rate: str = ""
    image: str = "image"
    video: str = ""
    revision: str = ""
    control: str = ""
    base: str = ""
    clip: str = "frames[0]"
    picture: str = "images[0]"


PYRAMID = "pyramid_num_inference_steps_list"
_STAGES = 3
"""Sizes of the pyramid: ``pyramid_num_stages`` of ``HeliosPyramidPipeline``."""
_UNION = "Z-Image-Turbo-Fun-Controlnet-Union-2.1"

# Pattern of "model task" -> call; the first match counts.
CALLS: tuple[tuple[str, Call], ...] = (
    (
        r"cosmos3",
        Call(
            pipeline="Cosmos3OmniPipeline",
            rate="fps",
            video="video",
            clip="video",
            picture="video[0]",
        ),
    ),
    (r"cosmos-predict2-.*t2i", Call(pipeline="Cosmos2TextToImagePipeline")),
    (
        r"cosmos-predict2-",
        Call(pipeline="Cosmos2VideoToWorldPipeline", rate="fps", video="video"),
    ),
    (
        r"cosmos-predict2\.5",
        Call(
            pipeline="Cosmos2_5_PredictBasePipeline",
            video="video",
            revision="diffusers/base/post-trained",
        ),
    ),
    (
        r"cosmos-transfer2\.5",
        Call(
            pipeline="Cosmos2_5_TransferPipeline",
            video="controls",
            revision="diffusers/general",
            control="AutoModel.from_pretrained('nvidia/Cosmos-Transfer2.5-2B', "
            "revision='diffusers/controlnet/general/edge'",
        ),
    ),
    (r"wan.*vace", Call(pipeline="WanVACEPipeline", video="video")),
    (r"(fast)?wan\S* i2v", Call(pipeline="WanImageToVideoPipeline")),
    (r"(fast)?wan", Call(pipeline="WanPipeline")),
    (r"qwen-image-edit-2", Call(pipeline="QwenImageEditPlusPipeline")),
    (r"qwen-image-edit", Call(pipeline="QwenImageEditPipeline")),
    (r"qwen-image", Call(pipeline="QwenImagePipeline")),
    (r"flux\.?2-klein", Call(pipeline="Flux2KleinPipeline")),
    (r"flux\.?2", Call(pipeline="Flux2Pipeline")),
    (r"flux\.?1-fill", Call(pipeline="FluxFillPipeline")),
    (r"flux\.?1-kontext", Call(pipeline="FluxKontextPipeline")),
    (r"flux\.?1", Call(pipeline="FluxPipeline")),
    (
        r"hunyuanvideo-?1\.5\S* i2v",
        Call(pipeline="HunyuanVideo15ImageToVideoPipeline", guider=True, sized=False),
    ),
    (r"hunyuanvideo-?1\.5", Call(pipeline="HunyuanVideo15Pipeline", guider=True)),
    (r"(fast)?hunyuan(video)?\b(?!-dit)", Call(pipeline="HunyuanVideoPipeline")),
    (r"hunyuan-?dit", Call(pipeline="HunyuanDiTPipeline")),
    (r"ltx-?2\S* i2v", Call(pipeline="LTX2ImageToVideoPipeline", rate="frame_rate")),
    (r"ltx-?2", Call(pipeline="LTX2Pipeline", rate="frame_rate")),
    (r"ltx-video", Call(pipeline="LTXConditionPipeline", rate="frame_rate")),
    (r"helios-base", Call(pipeline="HeliosPipeline")),
    (r"helios", Call(pipeline="HeliosPyramidPipeline", steps=PYRAMID)),
    (r"cogvideox", Call(pipeline="CogVideoXPipeline")),
    (r"latte", Call(pipeline="LattePipeline", frames="video_length")),
    (r"minimax-h3", Call(pipeline="")),
    (r"mochi", Call(pipeline="MochiPipeline")),
    (r"ovis-image", Call(pipeline="OvisImagePipeline")),
    (r"pixart-alpha", Call(pipeline="PixArtAlphaPipeline")),
    (r"pixart-sigma", Call(pipeline="PixArtSigmaPipeline")),
    (r"sana-video", Call(pipeline="SanaVideoPipeline", frames="frames")),
    (r"sana", Call(pipeline="SanaPipeline")),
    (r"sd3", Call(pipeline="StableDiffusion3Pipeline")),
    (
        r"z-image.*controlnet",
        Call(
            pipeline="ZImageControlNetPipeline",
            image="control_image",
            control="ZImageControlNetModel.from_single_file("
            f"'https://huggingface.co/alibaba-pai/{_UNION}/blob/main/{_UNION}.safetensors'",
            base="Tongyi-MAI/Z-Image-Turbo",
        ),
    ),
    (r"z-image", Call(pipeline="ZImagePipeline")),
)


def call_of(ctx: Context) -> Call:
    """The call of a model and task; that of any class for models of one's own."""
    named = f"{ctx.model_id} {ctx.task}"
    return next((call for pattern, call in CALLS if re.match(pattern, named)), Call())


def arguments(ctx: Context, prompt: str) -> dict[str, Value | list[int]]:
    """Arguments with a literal value, by name."""
    call = call_of(ctx)
    found: dict[str, Value | list[int]] = {"prompt": prompt}
    if call.sized:
        found |= {"height": ctx.height, "width": ctx.width}
    found[call.steps] = [ctx.steps] * _STAGES if call.steps == PYRAMID else ctx.steps
    fields = guidance.fields(ctx)
    if call.guider:
        fields.pop("guidance_scale")
    found |= fields
    image = ctx.task.endswith("2i")
    if not image or call.picture == "video[0]":
        found[call.frames] = ctx.frames
    if not image and call.rate:
        found[call.rate] = ctx.fps
    return found


def loaded_arguments(ctx: Context) -> dict[str, str]:
    """Arguments that a file is loaded for, as source."""
    call = call_of(ctx)
    if ctx.task.startswith("v2") and call.video:
        return {call.video: "load_video('input.mp4')"}
    found = {}
    if ctx.has_input_image or call.image == "control_image":
        found[call.image] = "load_image('input.png')"
    if call.pipeline == "FluxFillPipeline":
        found["mask_image"] = "load_image('mask.png')"
    return found
