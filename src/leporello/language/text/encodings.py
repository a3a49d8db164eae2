"""Which encoding bytes are in: the one that is told, or the one that is found.

Found are UTF-8, UTF-16, UTF-32 with a byte order mark, GB18030 and Big5. An encoding in which every byte is a
character, as latin-1, is never found: it fits anything, and so tells nothing. Knows bytes; knows nothing of files.
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
from leporello.language.text.binary_files import known_format, many_controls

Read = Callable[[], Iterator[bytes]]  # the bytes from the start, as often as it is called

BYTE_ORDER_MARKS = (  # byte order marks; the longer one first where one begins like another
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
    (b"\x84\x31\x95\x33", "gb18030"),
)
# What is tried when bytes are not UTF-8, and the share of frequent characters that is enough.
CANDIDATES = {
    "gb18030": 0.3,
    "big5": 0.3,
    "cp950": 0.3,  # Big5 as Windows writes it
    "big5hkscs": 0.3,  # Big5 with the characters of Hong Kong
    "utf-16-le": 0.5,
    "utf-16-be": 0.5,
}
NO_TEXT = {"idna", "punycode", "undefined", "unicode-escape", "raw-unicode-escape", "utf-7", "mbcs", "oem"}


@dataclass(frozen=True)
class Finding:
    """The encoding; or why the bytes are no text; or the first byte that is not UTF-8, where nothing fits."""

    encoding: str | None = None
    binary: str | None = None
    misfit: str | None = None


def named_encoding(name: str) -> str:
    """The encoding of a name, in Python's spelling.

    >>> named_encoding("GBK"), named_encoding("latin1")
    ('gbk', 'iso8859-1')
    """
    try:
        found = codecs.lookup(name)
    except (LookupError, ValueError) as error:
        raise _unknown(name) from error
    if not found._is_text_encoding or found.name in NO_TEXT:
        raise _unknown(name)
    return "utf-8" if found.name == "utf-8-sig" else found.name


def _unknown(name: str) -> ArgumentError:
    spelt = name.lower().replace("-", "_")
    known = {*aliases, *aliases.values()} - {other.replace("-", "_") for other in NO_TEXT}
    near = [found.replace("_", "-") for found in difflib.get_close_matches(spelt, sorted(known), n=3)]
    return ArgumentError(
        f"there is no encoding named '{name}'.",
        nearest=", ".join(near) or None,
        expected="auto, or a name such as utf-8, utf-16, gb18030, big5, latin-1",
        tries="--encoding NAME",
    )


def find_encoding(read: Read) -> Finding:
    """Look at all bytes and say what they are in.

    >>> find_encoding(lambda: iter(["你好，世界".encode("gb18030")])).encoding
    'gb18030'
    """
    head = next(read(), b"")[: 1 << 16]
    if what := known_format(head):
        return Finding(binary=what)
    for mark, encoding in BYTE_ORDER_MARKS:
        if head.startswith(mark):
            return Finding(encoding)
    nul, misfit = _survey(read)
    controls = many_controls(head)
    if nul is None and misfit is None:
        return Finding(binary=controls) if controls else Finding("utf-8")
    if plausible := _most_plausible(read):
        return Finding(plausible)
    if nul is not None:
        return Finding(binary=f"a NUL byte at offset {nul}")
    return Finding(binary=controls) if controls else Finding(misfit=misfit)


def _survey(read: Read) -> tuple[int | None, str | None]:
    """The offset of the first NUL byte, or the first byte that is not UTF-8; neither in a text in UTF-8."""
    found: list[int] = []

    def watched() -> Iterator[bytes]:
        fed = 0
        for chunk in read():
            if (place := chunk.find(0)) >= 0:
                found.append(fed + place)
                return
            fed += len(chunk)
            yield chunk

    try:
        for _ in decoded(watched(), "utf-8"):
            pass
    except Misfit as misfit:  # of a character that the NUL byte cut, too
        return (found[0], None) if found else (None, str(misfit))
    return (found[0], None) if found else (None, None)


def _most_plausible(read: Read) -> str | None:
    if _share(read, "euc_jp", Likeness(KANA)) > 0.3:  # Japanese, which may look like Chinese in Big5
        return None
    shares = {
        encoding: _share(read, encoding, Likeness(with_ascii=encoding.startswith("utf-16"))) for encoding in CANDIDATES
    }
    best = max(CANDIDATES, key=lambda encoding: shares[encoding])  # of equals the first
    return best if shares[best] >= CANDIDATES[best] else None


def _share(read: Read, encoding: str, likeness: Likeness) -> float:
    """How much of the text in this encoding looks like one; 0 if a byte does not fit."""
    try:
        for text in decoded(read(), encoding):
            likeness.add(text)
    except Misfit:
        return 0.0
    return likeness.share


# ---- (language.text.decoding) Bytes to characters, piece by piece: a byte that does not fit is told with its place in the whole file.
#
# Knows codecs; knows nothing of files, and does not choose an encoding.

BYTE_ORDER_MARK = "\ufeff"


class Misfit(Exception):
    """A byte that the encoding does not allow: told to whoever knows the file, never to the user as it is."""

    def __init__(self, byte: int, offset: int) -> None:
        super().__init__(f"byte 0x{byte:02X} at offset {offset}")


def decoded(chunks: Iterable[bytes], encoding: str) -> Iterator[str]:
    """The text of bytes, without its byte order mark; no character is cut, whatever the chunks.

    >>> "".join(decoded([b"gr\\xc3", b"\\xbcn"], "utf-8"))
    'grün'
    """
    decoder = codecs.getincrementaldecoder(encoding)("strict")
    fed, begun = 0, False
    for chunk in chain(chunks, [b""]):
        fed += len(chunk)
        try:
            text = decoder.decode(chunk, not chunk)
        except UnicodeDecodeError as error:  # its bytes are those held back and the chunk: they end where it ends
            raise Misfit(error.object[error.start], fed - len(error.object) + error.start) from error
        except UnicodeError as error:  # utf-16 and utf-32 without a byte order mark
            raise Misfit(chunk[0], 0) from error
        if text and not begun:
            begun = True
            text = text.removeprefix(BYTE_ORDER_MARK)
        if text:
            yield text


# ---- (language.text.frequent) How much like a text decoded characters look: the share of characters that are frequent in Chinese texts.
#
# Bytes of GB18030 often decode as Big5 and the other way round, but then to characters that hardly occur. The most
# frequent characters make up more than half of any running Chinese text. Knows characters; knows nothing of bytes.
# Shortcoming: a list of rare names alone is not recognised.

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
FREQUENT = frozenset(SIMPLIFIED + TRADITIONAL + PUNCTUATION)
KANA = frozenset(map(chr, range(0x3041, 0x3100)))  # Japanese; its bytes in EUC-JP are frequent characters in Big5
TYPED = frozenset(map(chr, range(32, 127))) | frozenset("\t\n\r\f")
ENOUGH = 1 << 20  # characters to judge by


class Likeness:
    """Judges a text that comes in pieces: give it all to `add`, then ask for `share`."""

    def __init__(self, frequent: frozenset[str] = FREQUENT, *, with_ascii: bool = False) -> None:
        """frequent     what counts
        with_ascii   letters and digits count too, as in UTF-16; where they are as in ASCII, they tell nothing
        """
        self._set = frequent | TYPED
        self._with_ascii = with_ascii
        self._frequent = 0
        self._seen = 0
        self._spoiled = False

    def add(self, text: str) -> None:
        self._spoiled |= "\0" in text
        if self._seen > ENOUGH:
            return
        for character, count in Counter(text).items():
            if self._with_ascii or character > "\x7f":
                self._seen += count
                if character in self._set:
                    self._frequent += count

    @property
    def share(self) -> float:
        return 0.0 if self._spoiled else self._frequent / max(1, self._seen)
