"""The encoding of bytes: looked up by name, or detected; and decoding piece by piece.

UTF-8, UTF-16, UTF-32 with a byte order mark, GB18030 and Big5 are detected. GB18030 bytes often decode as Big5 and the
other way round, but then to rare characters, whereas the 1,000 most frequent characters make up more than half of any
running Chinese text. Single-byte encodings such as latin-1 are never detected, because any bytes decode in them.
Shortcoming: a list of rare names alone is not detected.

Binary files are told from texts by the first bytes of known formats and by their share of control bytes. NUL bytes are
not judged: they occur in UTF-16.
"""

from __future__ import annotations

import codecs
import difflib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from encodings.aliases import aliases
from itertools import chain

from leporello.errors import ArgumentError

ReadBytes = Callable[[], Iterator[bytes]]  # the bytes from the start, each time it is called

BYTE_ORDER_MARK = "\ufeff"
BYTE_ORDER_MARKS = (  # the longer one first where one begins like another
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
    (b"\x84\x31\x95\x33", "gb18030"),
)
# Encodings tried when bytes are not UTF-8, and the least share of frequent characters.
CANDIDATES = {
    "gb18030": 0.3,
    "big5": 0.3,
    "cp950": 0.3,  # Big5 as Windows writes it
    "big5hkscs": 0.3,  # Big5 with the characters of Hong Kong
    "utf-16-le": 0.5,
    "utf-16-be": 0.5,
}
NOT_FOR_TEXTS = {"idna", "punycode", "undefined", "unicode-escape", "raw-unicode-escape", "utf-7", "mbcs", "oem"}
SIMPLIFIED = (
    "的一是不了在人有我他这个们中来上大为和国地到以说时要就出会可也你对生能而子那得于着下自之年过发后作里用道行所然家种事"
    "成方多经么去法学如都同现当没动面起看定天分还进好小部其些主样理心她本前开但因只从想实日军者意无力它与长把机十民第公此"
    "已工使情明性知全三又关点正业外将两高间由问很最重并物手应战向头文体政美相见被利什二等产或新己制身果加西斯月话合回特代"
    "内信表化老给世位次度门任常先海通教儿原东声提立及比员解水名真论处走义各入几口认条平系气题活尔更别打女变四神总何电数安"
    "少报才结反受目太量再感建务做接必场件计管期市直德资命山金指克许统区保至队形社便空决治展马科司五基眼书非则听白却界达光"
    "放强即像难且权思王象完设式色路记南品住告类求据程北边死张该交规万取拉格望觉术领共确传师观清今切院让识候带导争运笑飞风"
    "步改收根干造言联持组每济车亲极林服快办议往元英士证近失转夫令准布始怎呢存未远叫台单影具罗字爱击流备兵连调深商算质集百"
    "需价花党华城石级整府离况亚请技际约示复病息究线似官火断精满支视消越器容照须九增研写称企八功吗包片史委乎查轻易早曾除农"
    "找装广显吧阿李标谈吃图念六引历首医局突专费号尽另周较注语仅考落青随选列武红响虽推势参希古众构房半节土投某案黑维革划敌"
    "致陈律足态护七兴派孩验责营星够章音跟志底站严巴例防族供效续施留讲型料终答紧黄绝奇察母京段依批群项故按河米围江织害斗双"
    "境客纪采举杀攻父苏密低朝友诉止细愿千值仍男钱破网热助倒育属坐帝限船脸职速刻乐否刚威毛状率甚独球般普怕弹校苦创曰吾汝焉"
)
TRADITIONAL = (
    "這個們來為國說時會對過發後裡裏種經麼學現當沒動還進樣實軍無與長機關點業將兩間問並應戰頭體產話給門東兒聲員解論處義幾認條"
    "係氣題爾別變總電數報結務場計資許統區隊決馬書則聽達強難權設記類據邊張該規萬覺術領確傳師觀讓識帶導爭運飛風幹聯組濟車親極"
    "辦議證轉遠單羅愛擊備連調質價黨華級離況亞請際約復線斷滿視須寫稱嗎輕農找裝廣顯標談圖歷醫專費號盡較語僅隨選紅響雖勢參眾構"
    "節劃敵陳態護興驗責營夠嚴續講終緊黃絕項圍織鬥雙紀採舉殺蘇訴細願錢網熱屬臉職樂剛狀獨彈創從開於著妳她它臺甚"
)
PUNCTUATION = "，。、；：？！「」『』“”‘’（）《》〈〉【】…—－·　"
ASCII = frozenset(map(chr, range(32, 127))) | frozenset("\t\n\r\f")
CHINESE = frozenset(SIMPLIFIED + TRADITIONAL + PUNCTUATION) | ASCII
KANA = frozenset(map(chr, range(0x3041, 0x3100)))  # Japanese
MAX_CHARACTERS_COUNTED = 1 << 20


@dataclass(frozen=True)
class Detection:
    """What bytes are: one of the three is set.

    encoding      the encoding of a text
    binary        why the bytes are not a text
    undecodable   the first byte that is not UTF-8, of a text in an encoding that is not detected
    """

    encoding: str | None = None
    binary: str | None = None
    undecodable: str | None = None


class UndecodableByte(Exception):
    """A byte that the encoding does not allow, with its offset; callers turn it into an error that names the file."""

    def __init__(self, byte: int, offset: int) -> None:
        super().__init__(f"byte 0x{byte:02X} at offset {offset}")


def named_encoding(name: str) -> str:
    """The encoding of a name, in Python's spelling; a name of none, or of one that is not for texts, is refused.

    >>> named_encoding("GBK"), named_encoding("latin1")
    ('gbk', 'iso8859-1')
    """
    try:
        codec = codecs.lookup(name)
    except (LookupError, ValueError) as error:
        raise _unknown_name(name) from error
    if not codec._is_text_encoding or codec.name in NOT_FOR_TEXTS:
        raise _unknown_name(name)
    return "utf-8" if codec.name == "utf-8-sig" else codec.name


def _unknown_name(name: str) -> ArgumentError:
    """The error that a name is no encoding, with the nearest ones."""
    spelling = name.lower().replace("-", "_")
    known = {*aliases, *aliases.values()} - {other.replace("-", "_") for other in NOT_FOR_TEXTS}
    near = [match.replace("_", "-") for match in difflib.get_close_matches(spelling, sorted(known), n=3)]
    return ArgumentError(
        f"there is no encoding named '{name}'.",
        nearest=", ".join(near) or None,
        expected="auto, or a name such as utf-8, utf-16, gb18030, big5, latin-1",
        tries="--encoding NAME",
    )


def decoded(chunks: Iterable[bytes], encoding: str) -> Iterator[str]:
    """The text of bytes in an encoding, without its byte order mark. Characters may be cut between chunks.

    A byte that does not fit raises `UndecodableByte`.

    >>> "".join(decoded([b"gr\\xc3", b"\\xbcn"], "utf-8"))
    'grün'
    """
    decoder = codecs.getincrementaldecoder(encoding)("strict")
    bytes_read, at_start = 0, True
    for chunk in chain(chunks, [b""]):
        bytes_read += len(chunk)
        try:
            text = decoder.decode(chunk, not chunk)
        except UnicodeDecodeError as error:  # error.object: the bytes that were held back, and this chunk
            offset = bytes_read - len(error.object) + error.start
            raise UndecodableByte(error.object[error.start], offset) from error
        except UnicodeError as error:  # utf-16 and utf-32 without a byte order mark
            raise UndecodableByte(chunk[0], 0) from error
        if text and at_start:
            at_start = False
            text = text.removeprefix(BYTE_ORDER_MARK)
        if text:
            yield text


def detect_encoding(read: ReadBytes) -> Detection:
    """Detect the encoding from all bytes, which are read several times.

    read   the bytes in chunks, from the start each time it is called

    >>> detect_encoding(lambda: iter(["你好，世界".encode("gb18030")])).encoding
    'gb18030'
    """
    head = next(read(), b"")[: 1 << 16]
    if format_name := known_format(head):
        return Detection(binary=format_name)
    for mark, encoding in BYTE_ORDER_MARKS:
        if head.startswith(mark):
            return Detection(encoding)
    nul_offset, undecodable = _first_not_utf8(read)
    controls = control_byte_share(head)
    if nul_offset is None and undecodable is None:
        return Detection(binary=controls) if controls else Detection("utf-8")
    if plausible := _most_plausible(read):
        return Detection(plausible)
    if nul_offset is not None:
        return Detection(binary=f"a NUL byte at offset {nul_offset}")
    return Detection(binary=controls) if controls else Detection(undecodable=undecodable)


def _first_not_utf8(read: ReadBytes) -> tuple[int | None, str | None]:
    """(offset of the first NUL byte, None), or (None, first byte that is not UTF-8, in words); both None for UTF-8."""
    nul_offset: int | None = None

    def up_to_nul() -> Iterator[bytes]:
        nonlocal nul_offset
        bytes_read = 0
        for chunk in read():
            if (index := chunk.find(0)) >= 0:
                nul_offset = bytes_read + index
                return
            bytes_read += len(chunk)
            yield chunk

    try:
        for _ in decoded(up_to_nul(), "utf-8"):
            pass
    except UndecodableByte as undecodable:  # also a character that the NUL byte cuts
        return (nul_offset, None) if nul_offset is not None else (None, str(undecodable))
    return nul_offset, None


def _most_plausible(read: ReadBytes) -> str | None:
    """The candidate with the largest share of frequent characters; None if that is too small, or for EUC-JP."""
    if _frequent_share(read, "euc_jp", KANA) > 0.3:  # as Big5 the same bytes may be frequent Chinese characters
        return None
    shares = {encoding: _frequent_share(read, encoding, CHINESE) for encoding in CANDIDATES}
    best = max(CANDIDATES, key=lambda encoding: shares[encoding])  # the first of equals
    return best if shares[best] >= CANDIDATES[best] else None


def _frequent_share(read: ReadBytes, encoding: str, frequent: frozenset[str]) -> float:
    """The share of characters that are frequent; 0 if a byte does not fit, or for a text with NUL characters.

    ASCII characters count in UTF-16 alone: in the other encodings they are the same bytes.
    """
    count_ascii = encoding.startswith("utf-16")
    counted = frequent_count = 0
    try:
        for text in decoded(read(), encoding):  # to the end: a byte that does not fit may come late
            if "\0" in text:
                return 0.0
            if counted > MAX_CHARACTERS_COUNTED:
                continue
            for character, count in Counter(text).items():
                if count_ascii or character > "\x7f":
                    counted += count
                    frequent_count += count if character in frequent else 0
    except UndecodableByte:
        return 0.0
    return frequent_count / max(1, counted)


# ---- binary files

# First bytes of known formats
MAGIC = {
    b"\x89PNG\r\n\x1a\n": "a PNG picture",
    b"\xff\xd8\xff": "a JPEG picture",
    b"GIF87a": "a GIF picture",
    b"GIF89a": "a GIF picture",
    b"II*\0": "a TIFF picture",
    b"MM\0*": "a TIFF picture",
    b"%PDF-": "a PDF document",
    b"PK\x03\x04": "a zip archive (or .docx, .xlsx, .epub, .pt)",
    b"PK\x05\x06": "an empty zip archive",
    b"\x1f\x8b": "gzip within gzip",
    b"BZh": "a bzip2 archive",
    b"\xfd7zXZ\0": "an xz archive",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive",
    b"\x28\xb5\x2f\xfd": "a zstd archive",
    b"Rar!\x1a\x07": "a rar archive",
    b"\x7fELF": "an ELF program or library",
    b"MZ\x90\0": "a Windows program",
    b"\xca\xfe\xba\xbe": "a Java class or a macOS program",
    b"\xcf\xfa\xed\xfe": "a macOS program",
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": "an old Office document",
    b"SQLite format 3\0": "an SQLite database",
    b"\0asm": "a WebAssembly module",
    b"\x93NUMPY": "a NumPy array",
    b"\x89HDF\r\n": "an HDF5 file",
    b"PAR1": "a Parquet file",
    b"OggS": "an Ogg sound",
    b"ID3": "an MP3 sound",
    b"RIFF": "a RIFF sound or film",
}

# Bell, backspace, tab, the line and page ends and escape do occur in texts.
CONTROLS = bytes({*range(32), 0x7F} - {0x07, 0x08, 0x09, 0x0A, 0x0B, 0x0C, 0x0D, 0x1B})
MAX_CONTROL_SHARE = 0.05  # of all bytes; random bytes have a tenth


def known_format(head: bytes) -> str | None:
    """The binary format of a file that begins with these bytes; None if it is none of `MAGIC`."""
    for first_bytes, name in MAGIC.items():
        if head.startswith(first_bytes):
            return name
    return None


def control_byte_share(head: bytes) -> str | None:
    """The share of control bytes in words, if it is larger than in texts; else None."""
    share = (len(head) - len(head.translate(None, CONTROLS))) / max(1, len(head))
    return f"{share:.0%} of its bytes are control bytes" if share > MAX_CONTROL_SHARE else None
