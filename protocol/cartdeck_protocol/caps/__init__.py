from cartdeck_protocol.caps.cap import CapUrn
from cartdeck_protocol.caps.media import MediaUrn
from cartdeck_protocol.caps.tag import UrnError
