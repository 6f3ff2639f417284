"""The published data sets that Fairbed reads by name: files, checksums, licences, sources.

The only table of them. Readers, commands and pages take their facts from here. No file of a data
set ships with Fairbed: the user has the files, or `fairbed data fetch` downloads them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

LicenceClass: TypeAlias = Literal["A", "B"]
"""A: a licence, or the public domain, allows others to pass the files on. B: published for
research, and no text of a licence was found: use the files, and do not pass them on."""

READERS: Final = "fairbed.testbed.experiment.datasets"
"""Package of the readers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFile:
    """A file as its authors published it."""

    name: str
    """Without the suffix of a packed file: it may also be `name.gz` or `name.xz`."""
    sha256: str
    """Of the unpacked content, hexadecimal."""
    size_bytes: int
    """Of the unpacked content."""
    url: str = ""
    """Where `fairbed data fetch` finds it, packed or not; empty: nowhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """A tar file that has the files of a data set."""

    url: str
    md5: str
    """As the author published it, hexadecimal."""
    size_bytes: int
    """Most bytes that are downloaded."""
    suffix: str
    """Of the members that are data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A data set as its authors published it, and as the sources of the algorithms use it."""

    description: str
    """What it has, one line."""
    rows: int
    x_shape: tuple[int, ...]
    classes: int
    users: int = 0
    """Users in the data, for the partition `natural`; 0: none."""
    users_are: str = ""
    """What the users are."""
    is_tokens: bool = False
    """x are tokens, of which the models that ship take none."""
    licence_class: LicenceClass
    licence: str
    citation: str
    files: tuple[PublishedFile, ...] = ()
    archive: Archive | None = None
    reader: str
    """Function that returns the data set in a folder, `module:name` below `READERS`."""
    how_to_get: str
    """What to put into the folder of its name."""
    limit: str = ""
    """How it differs from what the sources used; empty: not known to."""

    @property
    def source(self) -> str:
        """Citation and licence, one line."""
        return f"{self.citation}; {self.licence}"

    @property
    def is_fetched(self) -> bool:
        """`fairbed data fetch` knows where all its files are."""
        return self.archive is not None or (
            bool(self.files) and all(file.url for file in self.files)
        )


def _idx(base: str, *found: tuple[str, str, int]) -> tuple[PublishedFile, ...]:
    return tuple(
        PublishedFile(name=name, sha256=sha256, size_bytes=size, url=f"{base}{name}.gz")
        for name, sha256, size in found
    )


_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases"
_MNIST_FILES = "{train,t10k}-{images-idx3,labels-idx1}-ubyte.gz"
_MNIST_IMAGES, _MNIST_LABELS = 47_040_016, 60_008

PUBLISHED: Final[Mapping[str, Published]] = MappingProxyType(
    {
        "fashion-mnist": Published(
            description="70,000 pictures of clothes, 28x28 pixels, 10 classes",
            rows=70_000,
            x_shape=(1, 28, 28),
            classes=10,
            licence_class="A",
            licence="MIT",
            citation="Xiao, Rasul, Vollgraf 2017, arXiv:1708.07747",
            files=_idx(
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
                (
                    "train-images-idx3-ubyte",
                    "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                    _MNIST_IMAGES,
                ),
                (
                    "train-labels-idx1-ubyte",
                    "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                    _MNIST_LABELS,
                ),
                (
                    "t10k-images-idx3-ubyte",
                    "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                    7_840_016,
                ),
                (
                    "t10k-labels-idx1-ubyte",
                    "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
                    10_008,
                ),
            ),
            reader="mnist:load_mnist",
            how_to_get=f"{_MNIST_FILES} of the Fashion-MNIST project of Zalando Research",
        ),
        "mnist": Published(
            description="70,000 handwritten digits, 28x28 pixels, 10 classes",
            rows=70_000,
            x_shape=(1, 28, 28),
            classes=10,
            licence_class="A",
            licence="CC BY-SA 3.0 as commonly stated",
            citation="LeCun, Cortes, Burges 1998",
            files=_idx(
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
                (
                    "train-images-idx3-ubyte",
                    "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                    _MNIST_IMAGES,
                ),
                (
                    "train-labels-idx1-ubyte",
                    "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                    _MNIST_LABELS,
                ),
                (
                    "t10k-images-idx3-ubyte",
                    "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                    7_840_016,
                ),
                (
                    "t10k-labels-idx1-ubyte",
                    "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
                    10_008,
                ),
            ),
            reader="mnist:load_mnist",
            how_to_get=f"{_MNIST_FILES} of the MNIST database of LeCun, Cortes and Burges",
        ),
        "cifar10": Published(
            description="60,000 colour photographs (or a part), 32x32 pixels, 10 classes",
            rows=60_000,
            x_shape=(3, 32, 32),
            classes=10,
            licence_class="B",
            licence="no licence stated",
            citation="Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images",
            archive=Archive(
                url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                md5="c32a1d4ab5d03f1284b67883e8d87530",
                size_bytes=200_000_000,
                suffix=".bin",
            ),
            reader="cifar:load_cifar",
            how_to_get="the files *.bin or *.bin.xz of the author's binary version (all or some)",
            limit="single files have no published checksum: the origin is unverified",
        ),
        "cifar100": Published(
            description="60,000 colour photographs (or a part), 32x32 pixels, 100 classes",
            rows=60_000,
            x_shape=(3, 32, 32),
            classes=100,
            licence_class="B",
            licence="no licence stated",
            citation="Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images",
            archive=Archive(
                url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
                md5="03b5dce01913d631647c71ecec9e9cb8",
                size_bytes=200_000_000,
                suffix=".bin",
            ),
            reader="cifar:load_cifar",
            how_to_get="the files *.bin or *.bin.xz of the author's binary version (all or some)",
            limit="single files have no published checksum: the origin is unverified; the reader "
            "was tested on files of this layout that a test writes, not on the published ones",
        ),
        "adult": Published(
            description="48,842 people, 99 categories, 2 classes by income, 2 users",
            rows=48_842,
            x_shape=(99,),
            classes=2,
            users=2,
            users_are="people with and without a doctorate",
            licence_class="A",
            licence="CC BY 4.0",
            citation="Becker, Kohavi 1996, Adult, UCI Machine Learning Repository",
            files=(
                PublishedFile(
                    name="adult.data",
                    sha256="5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
                    size_bytes=3_974_305,
                    url=f"{_UCI}/adult/adult.data",
                ),
                PublishedFile(
                    name="adult.test",
                    sha256="a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
                    size_bytes=2_003_153,
                    url=f"{_UCI}/adult/adult.test",
                ),
            ),
            reader="adult:load_adult",
            how_to_get="adult.data and adult.test of the UCI repository (also as .gz)",
            limit="q-FFL and AFL train on the categories alone; which features CoreFed used is "
            "open",
        ),
        "heart": Published(
            description="920 patients of 4 hospitals, 15 features, 2 classes",
            rows=920,
            x_shape=(15,),
            classes=2,
            users=4,
            users_are="hospitals",
            licence_class="A",
            licence="CC BY 4.0",
            citation="Janosi, Steinbrunn, Pfisterer, Detrano 1988, Heart Disease, UCI",
            files=tuple(
                PublishedFile(
                    name=f"processed.{hospital}.data",
                    sha256=sha256,
                    size_bytes=size,
                    url=f"{_UCI}/heart-disease/processed.{hospital}.data",
                )
                for hospital, sha256, size in (
                    (
                        "cleveland",
                        "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8",
                        18_461,
                    ),
                    (
                        "hungarian",
                        "d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796",
                        10_263,
                    ),
                    (
                        "switzerland",
                        "834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314",
                        4_109,
                    ),
                    (
                        "va",
                        "e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f",
                        6_737,
                    ),
                )
            ),
            reader="heart:load_heart",
            how_to_get="processed.{cleveland,hungarian,switzerland,va}.data of the UCI repository",
            limit="features are standardised over all rows of a hospital, which the source does "
            "over its training rows",
        ),
        "berka": Published(
            description="621 loans of a bank in 7 regions, 12 features (15 with trans.asc), "
            "2 classes",
            rows=621,
            x_shape=(12,),
            classes=2,
            users=7,
            users_are="regions",
            licence_class="B",
            licence="published for the PKDD'99 Discovery Challenge, no licence stated",
            citation="Berka, Sochorova 1999, PKDD'99 Discovery Challenge",
            files=tuple(
                PublishedFile(name=f"{table}.asc", sha256=sha256, size_bytes=size)
                for table, sha256, size in (
                    (
                        "loan",
                        "0cf9fbe7ec2ebb7a2547243d9af5f63f8c064e8f9982917cc000292bcee1fa1e",
                        26_354,
                    ),
                    (
                        "account",
                        "215f4bfcb2520ab8d41154f22b5b294050cc142bb0c7362b05ab6da4742432eb",
                        150_855,
                    ),
                    (
                        "district",
                        "d5422aa7326fde860b7285adee5e454d914f70900b66c6411528b2b8893ba0ce",
                        6_496,
                    ),
                    (
                        "order",
                        "c1d909d5d8a56ce679646c3f56544053ecec4d9688e995758e7a58532e811d00",
                        267_328,
                    ),
                )
            ),
            reader="berka:load_berka",
            how_to_get="loan.asc, account.asc, district.asc, order.asc (and trans.asc, if at hand) "
            "of data_berka.zip of the PKDD'99 challenge",
            limit="without trans.asc the three features of transactions are left out, so numbers "
            "are not comparable with the source",
        ),
        "mqp": Published(
            description="3,048 pairs of medical questions of 11 doctors, 200 words, 2 classes",
            rows=3_048,
            x_shape=(200,),
            classes=2,
            users=11,
            users_are="doctors",
            is_tokens=True,
            licence_class="B",
            licence="no licence stated",
            citation="McCreery et al., KDD 2020, Medical Question Pairs",
            files=(
                PublishedFile(
                    name="mqp.csv",
                    sha256="94ecd609a9ca9350e1cff2438aa55a034762f01c1a68732aaae3e4be7b03cf57",
                    size_bytes=665_688,
                    url="https://raw.githubusercontent.com/curai/medical-question-pair-dataset/"
                    "master/mqp.csv",
                ),
            ),
            reader="mqp:load_mqp",
            how_to_get="mqp.csv of the authors' repository curai/medical-question-pair-dataset",
            limit="the source takes word pieces of DistilBERT and its pretrained weights; here "
            "they are words, and no pretrained weights ship",
        ),
        "vehicle": Published(
            description="1,860 windows of 23 sensors, 100 features, 2 classes",
            rows=1_860,
            x_shape=(100,),
            classes=2,
            users=23,
            users_are="sensors",
            licence_class="B",
            licence="no licence stated",
            citation="Duarte, Hu 2004, Vehicle Classification in Distributed Sensor Networks",
            files=(
                PublishedFile(
                    name="ditto_vehicle_train_subset.json",
                    sha256="a8c8b22a89ea64e5a563cffe94352b48c1f44a02100fd3256adfc09dc43d9ddc",
                    size_bytes=3_879_378,
                ),
            ),
            reader="vehicle:load_vehicle",
            how_to_get="ditto_vehicle_train_subset.json (or .json.xz), a part that Ditto uses "
            "(the whole set in LEAF's layout is read as data.source)",
            limit="an uneven part of 1,860 of about 43,700 rows, so numbers are not comparable "
            "with q-FFL and Ditto",
        ),
        "shakespeare": Published(
            description="speeches of plays by role, 80 characters each, and the one that follows",
            rows=50_246,
            x_shape=(80,),
            classes=65,
            users=219,
            users_are="roles",
            is_tokens=True,
            licence_class="A",
            licence="public domain",
            citation="Shakespeare, excerpts as tinyshakespeare (Karpathy, char-rnn)",
            files=(
                PublishedFile(
                    name="tinyshakespeare.txt",
                    sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
                    size_bytes=1_115_394,
                    url="https://raw.githubusercontent.com/karpathy/char-rnn/master/data/"
                    "tinyshakespeare/input.txt",
                ),
            ),
            reader="shakespeare:load_shakespeare",
            how_to_get="tinyshakespeare.txt (input.txt of karpathy/char-rnn, also as .gz)",
            limit="excerpts of the plays of LEAF, and roles of one name in two plays are one user, "
            "so numbers are not comparable with q-FFL",
        ),
    }
)
"""Data sets by the name that `data.dataset` has."""


def how_to_get(name: str) -> str:
    """Return what a user does to have the files of a data set, one line."""
    found = PUBLISHED[name]
    fetch = f"run fairbed data fetch {name}, or " if found.is_fetched else ""
    return f"{fetch}put {found.how_to_get} into a folder {name} and set FAIRBED_DATA to its parent"
