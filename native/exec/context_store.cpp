#include "exec/context_store.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace freetoken {
namespace {

const char* name_of(BlockKind kind) {
    switch (kind) {
        case BlockKind::page:
            return "page";
        case BlockKind::window:
            return "window page";
        default:
            return "state";
    }
}

}  // namespace

ContextStore::ContextStore(const ProgramSpec& program, const Settings& settings)
    : cache_(program.caches, settings.page_tokens, settings.half_kv), states_(program.states) {
    resize(settings.room);
}

void ContextStore::resize(ContextRoom room) {
    if (std::min({room.pages, room.windows, room.states}) < 0)
        throw ProgramError("context memory cannot have fewer than no blocks");
    if (!cache_.uses(PageGroup::whole)) room.pages = 0;
    if (!cache_.uses(PageGroup::window)) room.windows = 0;
    if (states_.states() == 0) room.states = 0;
    std::vector<Resize> asked;
    cache_.ask(PageGroup::whole, room.pages, asked);
    cache_.ask(PageGroup::window, room.windows, asked);
    states_.ask(room.states, asked);
    resize_all(asked);
    cache_.resized(PageGroup::whole, room.pages);
    cache_.resized(PageGroup::window, room.windows);
    states_.resized(room.states);
}

ContextRoom ContextStore::room() const {
    return {cache_.pages(PageGroup::whole), cache_.pages(PageGroup::window), states_.slots()};
}

size_t ContextStore::block_bytes(BlockKind kind) const {
    if (kind == BlockKind::state) return states_.slot_bytes();
    return cache_.page_bytes(kind == BlockKind::page ? PageGroup::whole : PageGroup::window);
}

int ContextStore::blocks(BlockKind kind) const {
    if (kind == BlockKind::state) return states_.slots();
    return cache_.pages(kind == BlockKind::page ? PageGroup::whole : PageGroup::window);
}

std::vector<std::span<uint8_t>> ContextStore::block(BlockKind kind, int number) const {
    if (number < 0 || number >= blocks(kind))
        throw std::out_of_range("there is no " + std::string(name_of(kind)) + " " + std::to_string(number) +
                                " among " + std::to_string(blocks(kind)));
    if (kind == BlockKind::state) return states_.block(number);
    return cache_.block(kind == BlockKind::page ? PageGroup::whole : PageGroup::window, number);
}

void ContextStore::copy(BlockKind kind, int source, int target) {
    const auto from = block(kind, source), to = block(kind, target);
    if (source == target) return;
    for (size_t i = 0; i < from.size(); ++i) std::memcpy(to[i].data(), from[i].data(), from[i].size());
}

void ContextStore::read(BlockKind kind, int number, uint8_t* data) const {
    for (const std::span<uint8_t> part : block(kind, number)) data = std::copy(part.begin(), part.end(), data);
}

void ContextStore::write(BlockKind kind, int number, const uint8_t* data) {
    for (const std::span<uint8_t> part : block(kind, number)) {
        std::copy_n(data, part.size(), part.data());
        data += part.size();
    }
}

}  // namespace freetoken
