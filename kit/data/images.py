"""From pictures to the numbers that a captioner reads."""

from transformers import PreTrainedConfig, ViTImageProcessorPil


def image_processor_of(config: PreTrainedConfig) -> ViTImageProcessorPil:
    """The image processor of a new captioner, to be saved beside it: pictures of `image_size`, colours from −1 to 1.

    It is a stock one, so that `AutoImageProcessor` loads it everywhere, and it needs nothing but Pillow.
    """
    return ViTImageProcessorPil(
        size={"height": config.image_size, "width": config.image_size},
        do_convert_rgb=config.num_channels == 3,
        image_mean=[0.5] * config.num_channels,
        image_std=[0.5] * config.num_channels,
    )
