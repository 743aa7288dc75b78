"""Images, sounds and videos in memory, for the tests of decoders."""

import io

import av
import numpy as np
from hypothesis import strategies as st


def stored(image, kind="JPEG", **options):
    """The file of a Pillow image."""
    with io.BytesIO() as stream:
        image.save(stream, kind, **options)
        return stream.getvalue()


def tones(seconds, rate):
    """A channel of 440 Hz and one of 880 Hz."""
    times = np.arange(round(rate * seconds)) / rate
    return np.stack([0.5 * np.sin(880 * np.pi * times), 0.25 * np.sin(1760 * np.pi * times)])


def assert_holds_tones(sound, rate):
    spectra = np.abs(np.fft.rfft(sound[:, rate // 2 : rate // 2 + rate])) * 2 / rate
    assert spectra.argmax(axis=1).tolist() == [440, 880]
    assert np.allclose(spectra.max(axis=1), [0.5, 0.25], atol=0.03)


def encode_sound(container, stream, wave, rate):
    layout = "stereo" if len(wave) == 2 else "mono"
    frame = av.AudioFrame.from_ndarray(wave.astype(np.float32), format="fltp", layout=layout)
    frame.sample_rate, frame.pts = rate, 0
    stream.codec_context.open(strict=False)
    size = stream.codec_context.frame_size or 1024
    resampler = av.AudioResampler(stream.codec_context.format, layout, rate, frame_size=size)
    for part in [*resampler.resample(frame), *resampler.resample(None), None]:
        container.mux(stream.encode(part))


def still(width, height, kind="mp4", codec="mpeg4", pixels="yuv420p", count=1):
    """A video of black frames."""
    file = io.BytesIO()
    with av.open(file, "w", format=kind) as container:
        stream = container.add_stream(codec, rate=10, width=width, height=height, pix_fmt=pixels)
        for _ in range(count):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros((height, width, 3), np.uint8))))
        container.mux(stream.encode(None))
    return file.getvalue()


class Files(dict):
    """Each is made by its function when it is first asked for: all processes of a test run import these."""

    def __init__(self, kinds):
        self.kinds = kinds

    def __missing__(self, name):
        return self.setdefault(name, self.kinds[name]())


def with_damage(file, data):
    """The file with up to 20 bytes changed, as ``st.data()`` draws them."""
    damaged = bytearray(file)
    for _ in range(data.draw(st.integers(1, 20))):
        damaged[data.draw(st.integers(0, len(file) - 1))] = data.draw(st.integers(0, 255))
    return bytes(damaged)
