"""The script of the page: folds modules, lays the boxes out again, draws them, finds them by name."""

__all__ = ["SCRIPT"]

SCRIPT = r"""
'use strict';
const data=JSON.parse(document.getElementById('data').textContent);
const closed=new Set(data.closed),svg=document.getElementById('graph'),view=document.getElementById('view');
const NS='http://www.w3.org/2000/svg',GAPX=22,GAPY=46,LANE=14,SWEEPS=12,SPAN=24;
let placed=null,box={x:0,y:0,w:100,h:100};
const home=b=>{let p='';for(const part of b.p){p=p?p+'/'+part:part;if(closed.has(p))return p}return null};

function visible(){
 const boxes=new Map(),where=[],pairs=new Map();
 data.boxes.forEach((b,i)=>{
  const h=home(b),key=h===null?'b'+i:'m'+h;where.push(key);
  if(h===null){boxes.set(key,{t:b.t,l:b.l,k:b.k,tip:b.tip,path:b.p.join('/')});return}
  const g=boxes.get(key)||{t:h.replaceAll('/','.'),k:'module',n:0,fold:h,tip:'click to open',path:h};
  g.n+=b.n;g.l=[g.n+' operators'];boxes.set(key,g);
 });
 for(const [i,j,what] of data.arrows){
  const a=where[i],b=where[j];if(a!==b&&!pairs.has(a+'>'+b))pairs.set(a+'>'+b,{a,b,what});
 }
 for(const b of boxes.values()){
  b.w=Math.max(30,b.t.length*6.7,...b.l.map(s=>s.length*5.7))+18;b.h=26+13*b.l.length;
 }
 return {boxes,arrows:[...pairs.values()]};
}

function acyclic(keys,arrows){
 const after=new Map(keys.map(k=>[k,[]])),state=new Map(),links=new Map();
 for(const e of arrows)after.get(e.a).push(e.b);
 for(const root of keys){
  if(state.has(root))continue;
  state.set(root,1);const stack=[[root,0]];
  while(stack.length){
   const top=stack[stack.length-1],[k,n]=top,next=after.get(k)[n];
   if(next===undefined){state.set(k,2);stack.pop();continue}
   top[1]++;
   const back=state.get(next)===1,a=back?next:k,b=back?k:next;links.set(a+'>'+b,[a,b]);
   if(!state.has(next)){state.set(next,1);stack.push([next,0])}
  }
 }
 return [...links.values()];
}

function depths(keys,links,boxes){
 const after=new Map(keys.map(k=>[k,[]])),count=new Map(keys.map(k=>[k,0])),depth=new Map(keys.map(k=>[k,0]));
 for(const [a,b] of links){after.get(a).push(b);count.set(b,count.get(b)+1)}
 const reads=new Map(count),ready=keys.filter(k=>!count.get(k));
 const reached=new Set(keys.filter(k=>boxes.get(k).k==='input'));
 for(let i=0;i<ready.length;i++)for(const b of after.get(ready[i])){
  if(reached.has(ready[i]))reached.add(b);
  depth.set(b,Math.max(depth.get(b),depth.get(ready[i])+1));
  count.set(b,count.get(b)-1);if(!count.get(b))ready.push(b);
 }
 for(const k of ready.reverse())if(after.get(k).length&&(reads.get(k)<=after.get(k).length||!reached.has(k)))
  depth.set(k,after.get(k).reduce((m,b)=>Math.min(m,depth.get(b)),Infinity)-1);
 depth.side=new Set(reached.size?keys.filter(k=>!reached.has(k)):[]);
 return depth;
}

const mean=list=>list.reduce((a,b)=>a+b,0)/list.length;

function spread(layer,wish,width){
 const pools=[],offsets=[];let shift=0;
 layer.forEach((k,n)=>{
  if(n)shift+=(width.get(layer[n-1])+width.get(k))/2+GAPX;
  offsets.push(shift);pools.push([wish[n]-shift,1]);
  while(pools.length>1){
   const p=pools[pools.length-2],q=pools[pools.length-1];
   if(p[0]/p[1]<=q[0]/q[1])break;
   pools.pop();p[0]+=q[0];p[1]+=q[1];
  }
 });
 const out=[];for(const [total,n] of pools)for(let i=0;i<n;i++)out.push(total/n+offsets[out.length]);
 return out;
}

function layOut(boxes,arrows){
 const keys=[...boxes.keys()],links=acyclic(keys,arrows),depth=depths(keys,links,boxes);
 const width=new Map(keys.map(k=>[k,boxes.get(k).w])),layers=[],chains=new Map(),below=new Map(),above=new Map();
 const add=(m,k,v)=>m.has(k)?m.get(k).push(v):m.set(k,[v]);
 for(const k of keys)(layers[depth.get(k)]??=[]).push(k);
 for(const [a,b] of links){
  const chain=[a];
  if(depth.get(b)-depth.get(a)<=SPAN)for(let d=depth.get(a)+1;d<depth.get(b);d++){
   const bend='~'+width.size;width.set(bend,LANE);layers[d].push(bend);chain.push(bend);
  }
  chain.push(b);chains.set(a+'>'+b,chain);
  for(let i=1;i<chain.length;i++){add(below,chain[i-1],chain[i]);add(above,chain[i],chain[i-1])}
 }
 for(let s=0;s<SWEEPS;s++){
  const down=s%2===0,joined=down?above:below;
  for(let n=1;n<layers.length;n++){
   const i=down?n:layers.length-1-n,other=layers[down?i-1:i+1],at=new Map(other.map((k,j)=>[k,j])),mid=new Map();
   layers[i].forEach((k,j)=>{
    const p=(joined.get(k)||[]).filter(o=>at.has(o)).map(o=>at.get(o));mid.set(k,p.length?mean(p):j)});
   layers[i].sort((a,b)=>mid.get(a)-mid.get(b));
  }
 }
 const x=new Map();
 for(const layer of layers){
  let at=0;for(const k of layer){x.set(k,at+width.get(k)/2);at+=width.get(k)+GAPX}
  for(const k of layer)x.set(k,x.get(k)-at/2);
 }
 for(let s=0;s<SWEEPS;s++){
  const down=s%2===0,joined=down?above:below;
  for(const layer of down?layers:[...layers].reverse()){
   const wish=layer.map(k=>{
    const all=joined.get(k);if(!all)return x.get(k);
    const main=all.filter(v=>!depth.side.has(v));return mean((main.length?main:all).map(v=>x.get(v)))});
   spread(layer,wish,width).forEach((v,n)=>x.set(layer[n],v));
  }
 }
 let left=Infinity,right=-Infinity,y=GAPY/2;const level=new Map();
 for(const layer of layers){
  const h=Math.max(0,...layer.map(k=>boxes.has(k)?boxes.get(k).h:0));
  for(const k of layer){
   level.set(k,y+h/2);left=Math.min(left,x.get(k)-width.get(k)/2);right=Math.max(right,x.get(k)+width.get(k)/2);
  }
  y+=h+GAPY;
 }
 return {x,level,chains,left:left-GAPX,width:right-left+2*GAPX,height:y};
}

function make(tag,attributes,text){
 const e=document.createElementNS(NS,tag);
 for(const [k,v] of Object.entries(attributes))e.setAttribute(k,v);
 if(text!==undefined)e.textContent=text;
 return e;
}

function route(e,shown,place){
 let chain=place.chains.get(e.a+'>'+e.b);
 if(!chain)chain=[...place.chains.get(e.b+'>'+e.a)].reverse();
 const points=chain.map(k=>[place.x.get(k),place.level.get(k)]);
 const sign=points[0][1]<=points[points.length-1][1]?1:-1,last=points.length-1;
 points[0][1]+=sign*shown.boxes.get(e.a).h/2;points[last][1]-=sign*shown.boxes.get(e.b).h/2;
 let d='M'+points[0].map(v=>v.toFixed(1)).join(' ');
 for(let i=1;i<=last;i++){
  const [px,py]=points[i-1],[qx,qy]=points[i],m=(py+qy)/2;
  d+=`C${px.toFixed(1)} ${m.toFixed(1)} ${qx.toFixed(1)} ${m.toFixed(1)} ${qx.toFixed(1)} ${qy.toFixed(1)}`;
 }
 return d;
}

function draw(fit){
 const shown=visible(),place=layOut(shown.boxes,shown.arrows);placed={shown,place};
 view.replaceChildren();
 for(const e of shown.arrows){
  const p=make('path',{class:'e',d:route(e,shown,place),'marker-end':'url(#tip)'});
  p.append(make('title',{},e.what));view.append(p);
 }
 for(const [k,b] of shown.boxes){
  const g=make('g',{class:'n '+b.k,'data-path':b.path}),x=place.x.get(k),top=place.level.get(k)-b.h/2;
  const round=b.k==='input'||b.k==='output'?b.h/2:5,[fill,line]=data.colours[b.k];
  g.append(make('title',{},[b.path.replaceAll('/','.'),b.tip].filter(Boolean).join('\n')));
  g.append(make('rect',{x:x-b.w/2,y:top,width:b.w,height:b.h,rx:round,fill,stroke:line}));
  g.append(make('text',{x,y:top+17},b.t));
  b.l.forEach((s,n)=>g.append(make('text',{class:'s',x,y:top+30+13*n},s)));
  if(b.fold)g.addEventListener('click',()=>{closed.delete(b.fold);draw(false);tree()});
  else if(b.path)g.addEventListener('dblclick',()=>{closed.add(b.path);draw(false);tree()});
  view.append(g);
 }
 document.getElementById('count').textContent=shown.boxes.size+' boxes, '+shown.arrows.length+' arrows';
 if(fit)whole();
 find();
}

function frame(){svg.setAttribute('viewBox',`${box.x} ${box.y} ${box.w} ${box.h}`)}
function whole(){
 const p=placed.place,r=svg.getBoundingClientRect(),w=r.width||1200,h=r.height||800;
 const scale=Math.min(1.4,Math.max(w/p.width,Math.min(h/p.height,1),0.05));
 box={w:w/scale,h:h/scale,x:p.left+p.width/2-w/scale/2,y:0};frame();
}
svg.addEventListener('wheel',event=>{
 event.preventDefault();
 const r=svg.getBoundingClientRect(),f=Math.exp(event.deltaY*0.0015);
 const x=box.x+(event.clientX-r.left)/r.width*box.w,y=box.y+(event.clientY-r.top)/r.height*box.h;
 box={x:x-(x-box.x)*f,y:y-(y-box.y)*f,w:box.w*f,h:box.h*f};frame();
},{passive:false});
let drag=null;
svg.addEventListener('pointerdown',e=>{drag=[e.clientX,e.clientY,box.x,box.y]});
window.addEventListener('pointerup',()=>{drag=null});
svg.addEventListener('pointermove',e=>{
 if(!drag)return;
 const r=svg.getBoundingClientRect();
 box.x=drag[2]-(e.clientX-drag[0])*box.w/r.width;box.y=drag[3]-(e.clientY-drag[1])*box.h/r.height;frame();
});

const paths=data.modules;
function tree(){
 const list=document.getElementById('tree');list.replaceChildren();
 for(const path of paths){
  const parts=path.split('/');
  if(parts.some((_,i)=>i<parts.length-1&&closed.has(parts.slice(0,i+1).join('/'))))continue;
  const row=document.createElement('button');row.style.paddingLeft=6+12*(parts.length-1)+'px';
  row.textContent=(closed.has(path)?'+ ':'- ')+parts[parts.length-1];row.title=path.replaceAll('/','.');
  row.addEventListener('click',()=>{closed.has(path)?closed.delete(path):closed.add(path);draw(false);tree()});
  list.append(row);
 }
}
const search=document.getElementById('find');
function find(){
 const words=search.value.toLowerCase().split(/\s+/).filter(Boolean);
 for(const g of view.querySelectorAll('g.n')){
  const text=g.textContent.toLowerCase();
  g.classList.toggle('dim',words.length>0&&!words.every(w=>text.includes(w)));
 }
}
search.addEventListener('input',find);
document.getElementById('all').addEventListener('click',()=>{closed.clear();draw(true);tree()});
document.getElementById('none').addEventListener('click',()=>{paths.forEach(p=>closed.add(p));draw(true);tree()});
document.getElementById('fit').addEventListener('click',whole);
draw(true);tree();
"""
