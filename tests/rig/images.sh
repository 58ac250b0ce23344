# The rig's images, built without a registry. Part of `rig`, which sets HERE and engine().
# shellcheck shell=bash

IMAGES=$HERE/images

# build_image busybox|ssh: makes images/<name>.tar where it is absent or older than its recipe.
build_image() {
    local name=$1 archive=$IMAGES/$1.tar
    if [[ $archive -nt $HERE/images.sh && $archive -nt $HERE/gpu-entrypoint ]]; then
        return
    fi
    say "building the $name image"
    mkdir -p "$IMAGES"
    local root
    root=$(mktemp -d "$IMAGES/$name.XXXXXX")
    chmod 755 "$root"
    "fill_$name" "$root"
    # The same content gives the same archive, and a half-written one never has the final name.
    tar --sort=name --mtime=@0 --numeric-owner -C "$root" -cf "$archive.new" .
    mv "$archive.new" "$archive"
    rm -rf "$root"
}

fill_busybox() {
    local root=$1 applet
    mkdir -p "$root"/{bin,dev,etc,proc,root,run,sbin,sys,tmp,usr/bin,usr/sbin,var}
    chmod 1777 "$root/tmp"
    cp /bin/busybox "$root/bin/busybox"
    for applet in $(/bin/busybox --list); do
        [[ $applet == busybox ]] || ln -s /bin/busybox "$root/bin/$applet"
    done
    printf '%s\n' 'root:x:0:0:root:/root:/bin/sh' 'customer:x:1000:1000::/tmp:/bin/sh' >"$root/etc/passwd"
    printf '%s\n' 'root:x:0:' 'customer:x:1000:' >"$root/etc/group"
}

# Debian with an SSH server, from the archive that this machine's apt uses. About a minute.
fill_ssh() {
    local root=$1 archive suite
    archive=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | head -n 1)
    suite=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
    debootstrap --variant=minbase --include=openssh-server,procps,iproute2 \
        "$suite" "$root" "$archive" >&2
    # Each container makes host keys of its own; shared ones would let one customer pose as another.
    rm -rf "$root"/etc/ssh/ssh_host_* "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
    install -m 755 "$HERE/gpu-entrypoint" "$root/usr/local/bin/gpu-entrypoint"
}

import_images() {
    import_image rig/bb:1 busybox 'CMD ["/bin/sh"]'
    # What every CUDA base image sets, and what hands out all GPUs where nothing stops it.
    import_image rig/bb-cuda:1 busybox 'CMD ["/bin/sh"]' \
        'ENV NVIDIA_VISIBLE_DEVICES=all' 'ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility'
    [[ ! -e $IMAGES/ssh.tar ]] ||
        import_image rig/ssh:1 ssh 'ENTRYPOINT ["/usr/local/bin/gpu-entrypoint"]' 'EXPOSE 22'
}

# import_image TAG NAME CHANGE…: the label remembers which archive the engine has.
import_image() {
    local tag=$1 archive=$IMAGES/$2.tar changes=() change sum
    shift 2
    sum=$(sha256sum "$archive" | cut -d ' ' -f 1)
    if [[ $(engine image inspect --format '{{index .Config.Labels "rig.archive"}}' "$tag" 2>/dev/null) == "$sum" ]]; then
        return
    fi
    for change in "$@" "LABEL rig.archive=$sum"; do
        changes+=(--change "$change")
    done
    engine import "${changes[@]}" "$archive" "$tag" >/dev/null
}
